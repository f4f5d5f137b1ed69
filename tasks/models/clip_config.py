"""What a config may say of a CLIP model, checked without open_clip: a wrong name should not cost a build.

open_clip brings torch, which takes seconds to import; its models are files with their names, which do not.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tasks.core.errors import UsageError
from tasks.core.files import read_json

DIGITS = "tarmac/digits"
"""2 M parameters, most of them the token table; learns the digits in half a minute."""
DIGITS_FILE = Path(__file__).with_name("tarmac-digits.json")
KEYS = ("name", "pretrained")
MOST_NAMED = 10
UNTRAINABLE: Mapping[str, str] = {
    "multimodal_cfg": "it also writes captions (CoCa)",
    "init_logit_bias": "it is made for a sigmoid loss (SigLIP)",
    "hf_model_name": "its text tower is one of Hugging Face's",
    "hf_tokenizer_name": "its tokenizer is one of Hugging Face's",
}
"""Parts of a model that the recipe cannot train, and why."""


def check(model: Mapping[str, Any]) -> tuple[str, str | None]:
    """Name and weights of a config's `train.model`; UsageError names the key and the fix.

    Weights are looked for where they are loaded. Without open_clip any name passes.
    """
    for key in model:
        if key not in KEYS:
            raise UsageError(f"train.model.{key}: unknown key; {instead(key, KEYS)}")
    name, pretrained = model.get("name"), model.get("pretrained")
    if not isinstance(name, str):
        raise UsageError("train.model.name: is required: tarmac/digits, or one of open_clip such as ViT-B-32")
    if not isinstance(pretrained, str | None):
        raise UsageError("train.model.pretrained: must be a tag or the path of a file")
    files = _files()
    if len(files) > 1:
        _check_name(name, files)
    return name, pretrained


def registered(name: str) -> str:
    """A model's name in open_clip's registry, whose names are those of files."""
    return name.replace("/", "-")


def instead(word: str, known: Sequence[str]) -> str:
    """The name that was meant, or the first of those there are."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    if near:
        return f"did you mean {near[0]}?"
    return f"there are: {', '.join(known[:MOST_NAMED]) or 'none'}{', …' if len(known) > MOST_NAMED else ''}"


def _files() -> dict[str, Path]:
    """The files of all models by their names, ours first."""
    spec = find_spec("open_clip")
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    theirs = (path for folder in folders for path in Path(folder, "model_configs").glob("*.json"))
    return {DIGITS: DIGITS_FILE, **{path.stem: path for path in sorted(theirs)}}


def _check_name(name: str, files: Mapping[str, Path]) -> None:
    file = files.get(name) or files.get(registered(name))
    if file is None:
        raise UsageError(f"train.model.name: unknown model {name!r}; {instead(name, list(files))}")
    config = read_json(file)
    for part, reason in UNTRAINABLE.items():
        if part in config or part in config["text_cfg"]:
            raise UsageError(f"train.model.name: recipe clip cannot train {name}: {reason}; try ViT-B-32")
