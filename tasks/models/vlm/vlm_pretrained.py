"""Start from a whole vision-language model: weights of Tarmac's, a checkpoint of nanoVLM's or of Idefics3's.

What shapes the outputs has to agree: the config of the checkpoint is compared with the one that an export of
this model would write, and whatever differs is refused with the key to set. Rows of the tables of tokens are
found by the tokens themselves, because other libraries number the tokens of pictures differently; a token of
Tarmac's that the checkpoint does not know keeps its new row, as where a training starts from parts.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model
from torch import Tensor

from tasks.core.errors import DataError, TarmacError, UsageError, first_line
from tasks.core.files import read_json
from tasks.models.needs import is_path
from tasks.models.vlm import vlm_layouts as layouts
from tasks.models.vlm.chat_text import IMAGE, WHOLE, added_tokens, file_of
from tasks.models.vlm.vlm_options import VlmOptions
from tasks.models.vlm.vlm_towers import IDEFICS3, UNREADABLE

KEY = "train.model.pretrained"
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
INDEX, PICTURES = "model.safetensors.index.json", "preprocessor_config.json"
GLOBAL = "<global-img>"
"""Idefics3's name of the token before a whole picture."""
VIT = ("vit_hidden_dim", "vit_inter_dim", "vit_patch_size", "vit_img_size", "vit_n_heads", "vit_n_blocks")
LM = ("lm_hidden_dim", "lm_inter_dim", "lm_rms_eps", "lm_re_base", "lm_n_heads", "lm_n_kv_heads")
NANOVLM = {
    "vision": (*VIT, "vit_ln_eps", "vit_cls_flag"),
    "language": (*LM, "lm_n_blocks", "lm_tie_weights"),
    "pixel_shuffle": ("mp_pixel_shuffle_factor",),
}
"""The keys of nanoVLM's config that shape the outputs, by the option of Tarmac's that decides them."""
IDEFICS3_TEXT = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "rope_parameters",
)
COMPUTED = ("inv_freq", "position_ids")
"""Ends of names of tensors that the config determines."""


class WholeModel(NamedTuple):
    """What a checkpoint of another library holds, as far as a model of Tarmac's takes it."""

    layout: layouts.Layout
    tensors: dict[str, Tensor]
    vocabulary: Mapping[str, int]
    """The rows of tokens in its tables, by Tarmac's names of the tokens of pictures."""
    language: str
    """The value of train.model.language that has its tokenizer."""


def load_whole(model: Any, options: VlmOptions, chat: Any) -> None:
    """Load the weights that `options.pretrained` names into the model.

    UsageError where there is no such file or the model is another one, DataError where it cannot be read.
    """
    name = str(options.pretrained)
    if is_path(name) and not os.path.isdir(name):
        _load_own(model, name)
        return
    checkpoint = _read(model, options, chat, name)
    mine = layouts.weights_of(model)
    _require_tensors(name, checkpoint, mine)
    found = layouts.restore(checkpoint.layout, checkpoint.tensors)
    if "MP.proj.weight" in checkpoint.layout:
        found = layouts.unfold(found, model.vision)
    rows = _rows(options, chat, name, checkpoint, len(mine[layouts.EMBEDDING]))
    with torch.no_grad():
        for weight, value in found.items():
            if weight in (layouts.EMBEDDING, layouts.HEAD):
                known = rows >= 0
                mine[weight][known] = value[rows[known]].to(mine[weight].dtype)
            else:
                mine[weight].copy_(value)


def _load_own(model: Any, path: str) -> None:
    """Load the weights that a training of recipe vlm saved."""
    if not Path(path).is_file():
        raise UsageError(f"{KEY}: {path}: there is no such file")
    try:
        load_model(model, path)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise DataError(f"{KEY}: {path} holds no weights of this model: {first_line(error)}") from error


def _read(model: Any, options: VlmOptions, chat: Any, name: str) -> WholeModel:
    """Read the checkpoint in the folder or repository; UsageError for another model than this one."""
    if os.path.isdir(name) and not Path(name, CONFIG).is_file():
        raise UsageError(
            f"{KEY}: {name} holds no {CONFIG}, so it is no checkpoint of nanoVLM or Idefics3; of a "
            f"checkpoint of Tarmac's name the file: {Path(name, WEIGHTS)}"
        )
    try:
        path = file_of(name, CONFIG, KEY)
        config = read_json(path)
        kind = config.get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"{KEY}: {CONFIG} of {name} cannot be read: {first_line(error)}") from None
    if "vit_hidden_dim" in config:
        return _nanovlm(model, options, chat, name, config)
    if kind in IDEFICS3:
        return _idefics3(model, options, name, path)
    raise UsageError(
        f"{KEY}: {name} is a {kind}; a whole model starts from a checkpoint of nanoVLM, of Idefics3 or "
        "SmolVLM, or from a run's model.safetensors"
    )


def _nanovlm(model: Any, options: VlmOptions, chat: Any, name: str, config: Mapping[str, Any]) -> WholeModel:
    reason = layouts.why_no_siglip(model) or layouts.why_no_nanovlm(model)
    if reason is not None:
        option = "vision" if "vision" in reason else "language"
        _refuse(option, f"{reason}, which nanoVLM does not have", config)
    expected = layouts.nanovlm_config(model, options, chat)
    for option, keys in NANOVLM.items():
        for key in keys:
            if config.get(key, expected[key]) != expected[key]:
                mine = f"{getattr(options, option)} means {key} {expected[key]}"
                _refuse(option, f"{mine}, and {name} has {config[key]}", config)
    tensors = _tensors(name)
    if config.get("lm_tie_weights", True):
        _name_tied(tensors, "decoder.token_embedding.weight", "decoder.head.weight")
    tokenizer, extra = str(config.get("lm_tokenizer", "")), config.get("vlm_extra_tokens") or {}
    vocabulary = _vocabulary(_nanovlm_tokenizer(name, tokenizer), extra.values())
    pictures = {IMAGE: extra.get("image_token"), WHOLE: extra.get("global_image_token")}
    return WholeModel(
        layouts.nanovlm_layout(model),
        tensors,
        _with_names(vocabulary, pictures),
        str(config.get("lm_model_type", tokenizer)),
    )


def _refuse(option: str, problem: str, config: Mapping[str, Any]) -> None:
    """Raise the error for a model that nanoVLM's config does not describe."""
    instead = {
        "vision": config.get("vit_model_type"),
        "language": config.get("lm_model_type"),
        "pixel_shuffle": config.get("mp_pixel_shuffle_factor"),
    }[option]
    raise UsageError(f"train.model.{option}: {problem}; set train.model.{option}: {instead}")


def _nanovlm_tokenizer(name: str, tokenizer: str) -> Path:
    """Find nanoVLM's tokenizer: at its place, within the folder where that was moved, or by its name."""
    places = [Path(name, Path(tokenizer).name), Path(name)]
    if os.path.isabs(tokenizer):
        places.insert(0, Path(tokenizer))
    for place in places:
        if (place / TOKENIZER).is_file():
            return place / TOKENIZER
    return file_of(tokenizer, TOKENIZER, KEY)


def _idefics3(model: Any, options: VlmOptions, name: str, path: Path) -> WholeModel:
    from transformers import AutoConfig

    try:
        config: Any = AutoConfig.from_pretrained(path.parent)
    except UNREADABLE as error:
        raise DataError(f"{KEY}: {CONFIG} of {name} cannot be read: {first_line(error)}") from None
    reason = layouts.why_no_siglip(model)
    if reason is not None:
        raise UsageError(f"train.model.vision: {reason} for {name}; set train.model.vision: {name}")
    vision, language = layouts.vision_config(model), model.language.config
    _agree(name, "vision", options.vision, vision, config.vision_config, layouts.IDEFICS3_VISION)
    _agree(name, "language", options.language, language, config.text_config, IDEFICS3_TEXT)
    _agree(name, "language", options.language, language, config, ["tie_word_embeddings"])
    if config.scale_factor != options.pixel_shuffle:
        raise UsageError(
            f"train.model.pixel_shuffle: {name} was trained with {config.scale_factor}, not with "
            f"{options.pixel_shuffle}; set train.model.pixel_shuffle: {config.scale_factor}"
        )
    _require_normalisation(name, model.vision, path.parent / PICTURES)
    tensors = _tensors(name)
    if config.tie_word_embeddings:
        _name_tied(tensors, "model.text_model.embed_tokens.weight", "lm_head.weight")
    vocabulary = _vocabulary(file_of(name, TOKENIZER, KEY), ())
    image = next((token for token, row in vocabulary.items() if row == config.image_token_id), IMAGE)
    pictures = {IMAGE: image, WHOLE: WHOLE if WHOLE in vocabulary else GLOBAL}
    return WholeModel(
        layouts.idefics3_layout(layouts.weights_of(model)),
        tensors,
        _with_names(vocabulary, pictures),
        name,
    )


def _agree(name: str, option: str, given: str, mine: Any, theirs: Any, keys: Iterable[str]) -> None:
    for key in keys:
        here, there = getattr(mine, key, None), getattr(theirs, key, None)
        if here != there:
            raise UsageError(
                f"train.model.{option}: {given} has {key} {here}, and {name} has {there}; "
                f"set train.model.{option}: {name}"
            )


def _require_normalisation(name: str, vision: Any, path: Path) -> None:
    """Raise UsageError where the checkpoint comes with another normalisation of pixels."""
    if not path.is_file():
        return
    pictures = read_json(path)
    for key, mine in (("image_mean", vision.mean), ("image_std", vision.deviation)):
        theirs = pictures.get(key)
        if theirs is not None and not torch.allclose(mine.flatten(), torch.tensor(theirs)):
            raise UsageError(
                f"train.model.vision: its {key} is {mine.flatten().tolist()}, and {name} has {theirs}; "
                f"set train.model.vision: {name}"
            )


def _tensors(name: str) -> dict[str, Tensor]:
    """Read all tensors of one file of weights or of several."""
    try:
        files = [file_of(name, WEIGHTS, KEY)]
    except TarmacError as lacking:
        try:
            shards = read_json(file_of(name, INDEX, KEY))["weight_map"].values()
            files = [file_of(name, shard, KEY) for shard in sorted(set(shards))]
        except (TarmacError, OSError, ValueError, KeyError, AttributeError):
            raise lacking from None
    try:
        return {tensor: value for file in files for tensor, value in load_file(file).items()}
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(f"{KEY}: the weights of {name} cannot be read: {first_line(error)}") from error


def _name_tied(tensors: dict[str, Tensor], table: str, head: str) -> None:
    """Name tied weights by the table: a library saves them once, by either name."""
    value = tensors.pop(head, None)
    if value is not None:
        tensors.setdefault(table, value)


def _vocabulary(path: Path, added: Iterable[str]) -> dict[str, int]:
    """Return the rows of a tokenizer's tokens, once these are added."""
    from tokenizers import AddedToken, Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises nothing more special
        raise DataError(f"{KEY}: the tokenizer {path} cannot be read: {first_line(error)}") from None
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in added])
    found: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return found


def _with_names(vocabulary: Mapping[str, int], pictures: Mapping[str, str | None]) -> dict[str, int]:
    """Add Tarmac's names of tokens of pictures, given by the other library's."""
    named = ((mine, vocabulary.get(theirs or "")) for mine, theirs in pictures.items())
    return {**vocabulary, **{mine: row for mine, row in named if row is not None}}


def _require_tensors(name: str, checkpoint: WholeModel, mine: Mapping[str, Tensor]) -> None:
    """Raise UsageError unless the checkpoint holds every weight of the model, and no other."""
    shapes = dict(layouts.shapes(checkpoint.layout, mine))
    covered = {weight for weights in checkpoint.layout.values() for weight in weights}
    _require_none(
        f"{KEY}: {name} lacks", [*(shapes.keys() - checkpoint.tensors.keys()), *(mine.keys() - covered)]
    )
    extra = [one for one in checkpoint.tensors.keys() - shapes.keys() if not one.endswith(COMPUTED)]
    _require_none(f"{KEY}: this model has no place for what {name} holds:", extra)
    for tensor, expected in shapes.items():
        found = tuple(checkpoint.tensors[tensor].shape)
        skipped = checkpoint.layout[tensor][0] in (layouts.EMBEDDING, layouts.HEAD)
        if found[skipped:] != expected[skipped:] or len(found) != len(expected):
            raise UsageError(
                f"{KEY}: {tensor} of {name} is {list(found)}, and this model needs {list(expected)}; "
                "set train.model.vision and train.model.language to the models that it was made from"
            )


def _require_none(problem: str, tensors: Collection[str]) -> None:
    if tensors:
        others = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
        raise UsageError(f"{problem} {min(tensors)}{others}; set train.model to a model that it holds whole")


def _rows(options: VlmOptions, chat: Any, name: str, checkpoint: WholeModel, size: int) -> Tensor:
    """Return the checkpoint's row for each of the model's, [size], -1 where it has none.

    UsageError where the model's tokenizer has tokens of text that the checkpoint lacks.
    """
    table = min(
        len(checkpoint.tensors[tensor])
        for tensor, mine in checkpoint.layout.items()
        if mine[0] in (layouts.EMBEDDING, layouts.HEAD)
    )
    rows = torch.arange(size)
    rows[table:] = -1
    mine: Mapping[str, int] = chat.text.tokenizer.get_vocab(with_added_tokens=True)
    for token, row in mine.items():
        there = checkpoint.vocabulary.get(token, -1)
        rows[row] = there if there < table else -1
    added = frozenset(added_tokens(chat.text.grid))
    lacking = sorted(token for token, row in mine.items() if rows[row] < 0 and token not in added)
    if lacking:
        raise UsageError(
            f"train.model.language: the tokenizer of {options.language} has {len(lacking):,} tokens that "
            f"{name} was not trained with, such as {lacking[0]!r}; set train.model.language: "
            f"{checkpoint.language}"
        )
    return rows
