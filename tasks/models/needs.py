"""What a model needs that no package brings: files by path, and files of repositories on Hugging Face's hub.

Each recipe's options list it without torch, so that `tarmac fetch` can download ahead and `tarmac preflight`
can report what is missing. Files of a repository are chosen by their names alone: the first of several
formats that is complete, in the order in which the libraries that load them look for them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

SHARD = re.compile(r"-\d+-of-(\d+)\.")


@dataclass(frozen=True)
class Part:
    """Files of a repository that serve one purpose: all patterns of the first complete alternative, and
    whichever `extras` exist."""

    name: str
    alternatives: tuple[tuple[str, ...], ...]
    extras: tuple[str, ...] = ()

    def chosen(self, names: Collection[str]) -> frozenset[str] | None:
        """The names to be downloaded; None where no alternative is complete."""
        for patterns in self.alternatives:
            found = [_matching(pattern, names) for pattern in patterns]
            if all(found) and all(map(_is_whole, found)):
                extras = [_matching(pattern, names) for pattern in self.extras]
                return frozenset().union(*found, *extras)
        return None


CONFIG = Part("config", (("config.json",),), ("generation_config.json",))
WEIGHTS = Part(
    "weights",
    (
        ("model.safetensors",),
        ("model.safetensors.index.json", "model-*-of-*.safetensors"),
        ("pytorch_model.bin",),
        ("pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"),
    ),
)
SAFE_WEIGHTS = Part("weights as safetensors", WEIGHTS.alternatives[:2])
_BESIDE_TOKENIZER = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.*",
    "vocab.*",
    "merges.txt",
    "*.model",
)
TOKENIZER = Part(
    "tokenizer",
    (("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt"), ("*.model",)),
    _BESIDE_TOKENIZER,
)
FAST_TOKENIZER = Part("tokenizer", (("tokenizer.json",),), _BESIDE_TOKENIZER)
TOKENIZER_IF_ANY = Part("tokenizer", ((),), ("tokenizer.json", *_BESIDE_TOKENIZER))
PICTURES = Part("picture settings", (("preprocessor_config.json",),))
KIND_IF_ANY = Part("config", ((),), ("config.json",))
"""transformers recognises a tokenizer that does not name its own kind by the model's config."""
OPEN_CLIP_CONFIG = Part("open_clip's config", (("open_clip_config.json",),))


@dataclass(frozen=True)
class PathNeed:
    """A file or folder that the user put there; it cannot be downloaded.

    `nor` adds to the message what else was looked for by that name, and `fix` what may have been meant.
    """

    key: str
    path: str
    nor: str = field(default="", compare=False)
    fix: str = field(
        default="name a file that is there, or weights by a tag that open_clip knows", compare=False
    )

    @property
    def problem(self) -> str:
        """The message where no such file exists."""
        return f"{self.key}: there is no file {self.path}{self.nor}"


@dataclass(frozen=True)
class HubNeed:
    """Parts of a repository on the hub; `key` is the config key that asks for it."""

    key: str
    repository: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class UnknownNeed:
    """Something that a program may download itself; `why` is the explanation for a person."""

    key: str
    why: str


Need = PathNeed | HubNeed | UnknownNeed


def of_transformers(key: str, name: str, *parts: Part) -> Need:
    """The need for parts of a transformers model, named by its repository or its folder."""
    return PathNeed(key, name) if is_path(name) else HubNeed(key, name, parts)


def is_path(name: str) -> bool:
    """Return whether the name means a file or folder and no repository of the hub."""
    return os.path.exists(name) or name.startswith((os.sep, ".", "~")) or name.endswith(".safetensors")


def whole_need(key: str, name: str) -> Need:
    """The need for a whole model: a file of weights, or a folder or repository with config and weights.

    A checkpoint of nanoVLM's has no tokenizer of its own.
    """
    return of_transformers(key, name, CONFIG, SAFE_WEIGHTS, TOKENIZER_IF_ANY)


def of_open_clip_text(key: str, text: Mapping[str, Any], *, weights: bool) -> Sequence[Need]:
    """The needs of a text tower as open_clip describes it: the transformers model and tokenizer that it
    names."""
    model_parts = (CONFIG, WEIGHTS) if weights else (CONFIG,)
    named = (
        (text.get("hf_model_name"), model_parts),
        (text.get("hf_tokenizer_name"), (TOKENIZER, KIND_IF_ANY)),
    )
    return [of_transformers(key, name, *parts) for name, parts in named if name]


def open_clip_weights(file: str) -> Part:
    """The weights that open_clip loads under this file name ("" for its usual one): safetensors is preferred
    to a pickle (open_clip's pretrained.py, `download_pretrained_from_hf`)."""
    if not file:
        return Part("weights", (("open_clip_model.safetensors",), ("open_clip_pytorch_model.bin",)))
    stem, end = os.path.splitext(file)
    safe = ((f"{stem}.safetensors",),) if end in (".bin", ".pth") else ()
    return Part("weights", (*safe, (file,)))


def _matching(pattern: str, names: Collection[str]) -> frozenset[str]:
    if not any(sign in pattern for sign in "*?["):
        return frozenset({pattern} & set(names))
    return frozenset(name for name in names if "/" not in name and fnmatchcase(name, pattern))


def _is_whole(names: Collection[str]) -> bool:
    """Whether all files of weights that are split into several are there."""
    counts = {int(found[1]) for name in names if (found := SHARD.search(name))}
    return not counts or counts == {len(names)}
