"""How verify words what it finds: always an error, always with the way out.

Names and keys come from the data, so whatever a terminal would obey is shown as an escape.
"""

from __future__ import annotations

from typing import Any

from tasks.core.findings import Finding
from tasks.core.units import shorten

REBUILD = "tarmac repair DATASET makes it again from the source; only what is damaged is redone"
REMAKE = "tarmac repair DATASET makes this shard again from the source; all others stay as they are"
REMEMBER = "tarmac repair DATASET --config CONFIG writes it again; CONFIG is what the dataset was built by"
"""Of build.json, which alone tells how a repair goes about the rest."""
BUILD_AGAIN = "tarmac build CONFIG builds one"
AGAIN = (
    "fetch it again from where it came; a build from these tars (source kind: shards) drops bad samples and "
    "lists them"
)
"""Of tars that Tarmac has not built."""
SORT = (
    "nothing is lost: pack it again sorted by name, so that the members of a sample meet "
    "(tar --sort=name -cf TAR FOLDER)"
)
ANEW = {"sample.split_members": SORT}
"""Instead of AGAIN, where nothing is lost."""
RIGHTS = (
    "give yourself the right to read it (chmod u+rX, or ask its owner), then verify again: nobody has seen "
    "whether it is sound"
)
FETCH = "fetch it from where the others came, or name the tars without it"
RESEND = (
    "delete it in the bucket, and mirror.json in the dataset's folder, then build again: what is missing is "
    "sent again"
)
"""Of a version's copy in a bucket."""
UPDATE = "update Tarmac if a newer one made this, else build the dataset again"
LONGEST = 300
"""Characters of a name or a piece of evidence."""


def where(shard: str) -> dict[str, Any]:
    """The place of a shard: its split, which is its folder, if it has one, and its name."""
    split = shard.rpartition("/")[0]
    return {"split": split, "shard": shard} if split else {"shard": shard}


def fault(code: str, remedy: str, where: dict[str, Any], **evidence: Any) -> Finding:
    return Finding(code, "error", remedy, _shown(where), _shown(evidence))


def _shown(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(value) if isinstance(value, str) else value for name, value in facts.items()}


def plain(text: str) -> str:
    """The text on one line, without characters that act on a terminal or that no encoding takes."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() else _escaped(char) for char in text[: LONGEST + 1])
    return shorten(text, LONGEST)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
