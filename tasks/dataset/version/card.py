"""`README.md` of a version: its content, for people, the Hub and `datasets.load_dataset` on its folder.

Without the first block, `load_dataset` would take `sizes.json` for data. That block also names the members:
from the first five samples alone, `datasets` would conclude that every conversation has as many images as
those five, and that every `json` has the same fields. The card holds counts and no sample, so the card of a
private version may be shown, and it holds nothing that depends on time, host or path. Its words are sealed in
every version: where they change, a repair can no longer make the card of an older version again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from tasks.dataset.version.manifest import Manifest, is_of_rows

NEEDS = "4.7"
"""The first release of `datasets` that has the type json."""
_IMAGE = r"(?:jpg|png|webp)"
_EMBEDDINGS = "struct: [{name: image_emb, list: {list: float32}}, {name: text_emb, list: {list: float32}}]"
_MEMBERS = {
    _IMAGE: ("dtype: image", "the image"),
    rf"\d{{3}}\.{_IMAGE}": ("dtype: image", "images of the conversation, in their order"),
    r"txt": ("dtype: string", "what is said of the image or volume: a caption or a report, in UTF-8"),
    r"json": ("dtype: json", "further facts about the sample"),
    r"syn\.json": ("dtype: json", "synthetic captions (`syn_text`)"),
    r"paug\.json": ("dtype: json", "the parameters of each augmentation (`param_aug`)"),
    r"npz|pth\.gz": (
        _EMBEDDINGS,
        "the teachers' embeddings: a row of `image_emb` per augmentation; the first row of `text_emb` is of "
        "the caption, each other one of a synthetic caption",
    ),
    r"volume\.b2nd": ("dtype: binary", "the volume as int16 Hounsfield units (D, H, W), a Blosc2 array"),
    r"volume\.npy": ("list: {list: {list: int16}}", "the volume as int16 Hounsfield units (D, H, W)"),
}
"""For each member, by a pattern of its name: its type in `datasets`, and what it is."""
_JSON = {
    "chat": "the turns, as `messages: [{user, assistant}]`, their `ratings` and further facts",
    "volume_report": "name, patient, spacing, window, orientation, labels (null where one is unknown) and "
    "what was done to the volume",
}
"""What `json` holds, for the modalities that define it."""


def card(manifest: Manifest, members: Collection[str], license_id: str | None) -> str:
    """The card of a version whose samples have some or all of these members."""
    from tasks.core.pages import render  # it imports Jinja, which a build needs only once

    names = sorted(members)
    meanings: dict[str, list[str]] = {}
    for name in names:
        meaning = _JSON.get(manifest.modality) if name == "json" else None
        meanings.setdefault(meaning or _kind(name)[1], []).append(f"`{name}`")
    return render(
        "dataset/card.md",
        manifest=manifest,
        license=None if license_id is None else json.dumps(license_id),
        splits=[(json.dumps(split.replace("-", "_")), split) for split in manifest.splits],
        kinds={json.dumps(name): _kind(name)[0] for name in names},
        meanings=meanings,
        files_passed_over=sum(
            number for kind, number in manifest.passed_over.items() if not is_of_rows(kind)
        ),
        first="train" if "train" in manifest.splits else min(manifest.splits, default="train"),
        needs=NEEDS,
    )


def _kind(name: str) -> tuple[str, str]:
    found = (kind for pattern, kind in _MEMBERS.items() if re.fullmatch(pattern, name))
    return next(found, ("dtype: binary", "a further member"))
