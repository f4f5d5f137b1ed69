"""Vision-language models in nanoVLM's design: a vision tower, a projector, a causal language model.

Source: nanoVLM (github.com/huggingface/nanoVLM), whose tokens, tiles and projector are kept. Three things
differ: the loss is the mean over all answer tokens of a step, on all ranks and in all parts of a batch, where
nanoVLM takes the mean of means; packed conversations do not attend to each other; and logits are computed
only where the loss needs them, which saves most of the memory of a large vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import resize

from tasks.core.errors import DataError, UsageError
from tasks.core.files import digest
from tasks.core.schema.training import Pack
from tasks.dataset.formats.checks import is_blank
from tasks.dataset.formats.images import MEMBERS
from tasks.dataset.formats.pixels import Box, EncodedImage
from tasks.loader.collate import Batch, Collate
from tasks.loader.crops import cut
from tasks.loader.decoders import decode_image, decode_json, open_image
from tasks.loader.workers import Transform
from tasks.models.recipes import Recipe
from tasks.models.task import Answerer, Loss, Question, Task
from tasks.models.vlm import attention
from tasks.models.vlm.attention import nonzero_of
from tasks.models.vlm.chat_text import (
    ASSISTANT,
    NOT_A_TARGET,
    SYSTEM,
    USER,
    ChatMessage,
    ChatText,
    Encoded,
    Grid,
)
from tasks.models.vlm.vlm_options import VlmOptions
from tasks.models.vlm.vlm_pretrained import load_whole
from tasks.models.vlm.vlm_towers import (
    Projector,
    VisionTower,
    build_language,
    build_vision,
    measure_width,
    vision_side,
)

PADDING = -1
"""The segment number of padding."""


class Tiles(NamedTuple):
    """Cuts pictures into the tiles that a vision tower takes, as nanoVLM does.

    Source: nanoVLM's data/custom_transforms.py, DynamicResize and GlobalAndSplitImages. The longer side
    becomes `max_side` pixels, smaller pictures only with `upscale`; both sides become multiples of a tile of
    `side` pixels. A picture of several tiles is preceded by the whole picture in one.
    """

    side: int
    max_side: int
    upscale: bool

    @property
    def grid(self) -> int:
        """The most tiles per side."""
        return math.ceil(self.max_side / self.side)

    def grid_of(self, width: int, height: int) -> Grid:
        """Return rows and columns of a picture's tiles."""
        longer, shorter = max(width, height), min(width, height)
        most = max(self.max_side // self.side, 1)
        long_tiles = most if self.upscale else min(most, math.ceil(longer / self.side))
        short_tiles = -(-shorter * long_tiles // longer)
        return (short_tiles, long_tiles) if width >= height else (long_tiles, short_tiles)

    def cut(self, picture: Image.Image | EncodedImage) -> Tensor:
        """Return [tiles, side, side, 3] uint8, the whole picture first where there are several tiles. A
        decoded picture is resized as by nanoVLM to the bit, an encoded one by `crops`, which is quicker."""
        rows, columns = self.grid_of(*picture.size)
        width, height = columns * self.side, rows * self.side
        if isinstance(picture, EncodedImage):
            whole = Box(0, 0, picture.size[1], picture.size[0])
            pixels = cut(picture, whole, (height, width), InterpolationMode.BICUBIC)
        else:
            pixels = torch.from_numpy(np.array(picture.resize((width, height), Image.Resampling.BICUBIC)))
        split = pixels.reshape(rows, self.side, columns, self.side, 3).permute(0, 2, 1, 3, 4)
        tiles = split.reshape(rows * columns, self.side, self.side, 3)
        if len(tiles) == 1:
            return tiles
        small: Tensor = resize(pixels.permute(2, 0, 1), [self.side, self.side]).permute(1, 2, 0)
        return torch.cat([small[None], tiles])


class Chat(NamedTuple):
    """Turns conversations into the model's input. Picklable."""

    text: ChatText
    tiles: Tiles

    def transform(self, sample: Mapping[str, bytes], is_train: bool = False) -> dict[str, Any]:
        """Map members to `tokens` and `targets` [length] int64, `image` [tiles, side, side, 3] uint8, and the
        number of `pictures`."""
        read = open_image if is_train else decode_image
        pictures = [read(sample[name]) for name in _pictures(sample)]
        tokens, targets = self.encode(sample, [picture.size for picture in pictures])
        return {
            "tokens": torch.tensor(tokens),
            "targets": torch.tensor(targets),
            "image": self.cut(pictures),
            "pictures": len(pictures),
        }

    def encode(self, sample: Mapping[str, bytes], sizes: Sequence[tuple[int, int]]) -> Encoded:
        """Encode a sample's conversation about pictures of these sizes."""
        system, turns = _conversation(sample)
        messages = [*system, *(message for turn in turns for message in turn)]
        return self.text.encode(messages, [self.tiles.grid_of(*size) for size in sizes])

    def cut(self, pictures: Sequence[Any]) -> Tensor:
        """Cut all pictures into tiles, [tiles, side, side, 3] uint8; without pictures there are 0 tiles."""
        if not pictures:
            return torch.empty(0, self.tiles.side, self.tiles.side, 3, dtype=torch.uint8)
        return torch.cat([self.tiles.cut(picture) for picture in pictures])


class ChatTransform:
    """The transform of the recipe; as in nanoVLM, nothing about it is random."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    def __call__(self, sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
        return self._chat.transform(sample, is_train=generator_seed is not None)

    @property
    def shaped_by(self) -> str:
        return digest([self._chat.text.shape, list(self._chat.tiles)])

    def measure(self, sample: Mapping[str, bytes]) -> tuple[int, int]:
        """Count the tokens and images of a sample, for packing, without decoding the images."""
        sizes = [open_image(sample[name]).size for name in _pictures(sample)]
        return len(self._chat.encode(sample, sizes).tokens), len(sizes)


class VlmRecipe(Recipe):
    """Vision-language models by the names of their parts, trained the way nanoVLM does."""

    collate: Collate

    def __init__(self, options: VlmOptions) -> None:
        self._options = options
        self.collate = rows_of

    @cached_property
    def chat(self) -> Chat:
        """The tokens and tiles of these options; UsageError where picture, tile, patches and projector do not
        fit."""
        options = self._options
        side, patches = vision_side(options.vision)
        if options.max_side % side:
            raise UsageError(
                f"train.model.max_side: {options.max_side} pixels are no whole number of tiles, which are "
                f"{side} pixels wide for {options.vision}; take {max(options.max_side // side, 1) * side}"
            )
        if patches % options.pixel_shuffle:
            raise UsageError(
                f"train.model.pixel_shuffle: {options.vision} has {patches} patches per side, which "
                f"{options.pixel_shuffle} does not divide"
            )
        tiles = Tiles(side, options.max_side, options.upscale)
        tokens_per_tile = (patches // options.pixel_shuffle) ** 2
        return Chat(ChatText(options.language, tokens_per_tile, tiles.grid), tiles)

    def build_model(self, *, pretrained: bool = True) -> nn.Module:
        options, chat = self._options, self.chat
        of_parts = pretrained and options.pretrained is None
        vision = build_vision(options.vision, options.vision_pretrained, pretrained=of_parts)
        language = build_language(options.language, chat.text.size, pretrained=of_parts)
        language_width = language.get_input_embeddings().embedding_dim
        projector = Projector(options.pixel_shuffle, measure_width(vision), language_width)
        model = VisionLanguageModel(vision, projector, language, chat.text.image)
        if pretrained and not of_parts:
            load_whole(model, options, chat)
        return model

    def task(self, model: nn.Module) -> VlmTask:
        return VlmTask(model, self.chat)

    def transform(self, is_train: bool) -> Transform:
        return ChatTransform(self.chat)

    def example(self, samples: int, pack: Pack | None = None) -> Batch:
        """Rows are full of pictures of one tile, or of one picture of as many tiles as there may be and an
        answer half as long."""
        each = self.chat.text.tokens_per_tile
        tiles = min(pack.images, pack.tokens // each) if pack is not None else self.chat.tiles.grid**2 + 1
        length = pack.tokens if pack is not None else 3 * tiles * each // 2
        targets = max(length - tiles * each, 1)
        tokens = torch.zeros(samples, length, dtype=torch.long)
        tokens[:, : tiles * each] = self.chat.text.image
        answered = torch.full_like(tokens, NOT_A_TARGET)
        answered[:, -targets:] = 0
        side, held = self.chat.tiles.side, 2 if pack is not None else 1
        segments = torch.arange(length) * held // length
        return {
            "key": [""] * samples,
            "tokens": tokens,
            "targets": answered,
            "positions": torch.arange(length).repeat(samples, 1),
            "segments": segments.repeat(samples, 1),
            "image": torch.zeros(samples, tiles, side, side, 3, dtype=torch.uint8),
            "tiles": torch.full((samples,), tiles),
            "rows": [[held, tiles, targets, length, tiles if pack is not None else 1]] * samples,
        }

    def counts(self, batch: Batch) -> Mapping[str, float]:
        rows = [RowCounts(*row) for row in batch["rows"]]
        return {
            "rows": len(rows),
            "places": batch["tokens"].numel(),
            "tokens": sum(row.tokens for row in rows),
            "pictures": sum(row.pictures for row in rows),
        }

    def part_of(self, name: str) -> str:
        return name.partition(".")[0]


class VisionLanguageModel(nn.Module):
    """The three parts; the projected tiles replace the tokens `image_token` in order."""

    def __init__(self, vision: VisionTower, projector: Projector, language: Any, image_token: int) -> None:
        super().__init__()
        attention.install(language.config)
        self.vision, self.projector, self.language = vision, projector, language
        self._image_token = image_token

    def forward(
        self, tokens: Tensor, tiles: Tensor, positions: Tensor, segments: Tensor | None = None, count: int = 0
    ) -> Tensor:
        """Compute the features that the language model's head takes, [rows, length, width].

        `tokens` and `positions` have shape [rows, length], `tiles` [tiles, side, side, 3] uint8. A token
        attends to those before it, in its row or in its part of `segments`; see `attention.several`.
        """
        embedded = self.embed(tokens, tiles)
        apart = {} if segments is None else attention.several(self.language.config, segments, count)
        found: Tensor = self.language.base_model(
            inputs_embeds=embedded, position_ids=positions, use_cache=False, **apart
        ).last_hidden_state
        return found

    def embed(self, tokens: Tensor, tiles: Tensor) -> Tensor:
        """Return [rows, length, width]: the embeddings of the tokens, and of the tiles in place of
        image tokens."""
        embedded: Tensor = self.language.get_input_embeddings()(tokens)
        if not len(tiles) and not self.training:
            return embedded
        # Without pictures a blank one is used: ranks wait for the gradients of all trained parameters.
        blank = tiles.new_zeros(1, self.vision.side, self.vision.side, 3)
        pixels = (tiles if len(tiles) else blank).permute(0, 3, 1, 2).to(
            self.projector.linear.weight.dtype
        ) / 255
        projected = self.projector(self.vision(pixels)).to(embedded.dtype)
        if not len(tiles):
            unchanged: Tensor = embedded + 0 * projected.sum()
            return unchanged
        projected = projected.flatten(0, -2)
        places = nonzero_of((tokens == self._image_token).flatten(), len(projected))
        return embedded.flatten(0, 1).index_copy(0, places, projected).view_as(embedded)


class VlmTask(Task, Answerer):
    """The model with the cross-entropy of the answer tokens; it answers by greedy decoding."""

    def __init__(self, model: nn.Module, chat: Chat) -> None:
        super().__init__(model)
        self._chat = chat

    def forward(self, batch: Mapping[str, Any]) -> Loss:
        targets = batch["targets"].flatten()
        rows = [RowCounts(*row) for row in batch["rows"]]
        tiles = real_tiles(batch["image"], batch["tiles"], sum(row.tiles for row in rows))
        is_packed = any(row.conversations > 1 for row in rows)
        segments = batch["segments"] if is_packed else None
        parts = sum(row.conversations + (row.tokens < batch["tokens"].shape[1]) for row in rows)
        features = self.model(batch["tokens"], tiles, batch["positions"], segments, parts)
        count = sum(row.targets for row in rows)
        places = nonzero_of(targets != NOT_A_TARGET, count)
        logits = self.model.language.get_output_embeddings()(features.flatten(0, 1).index_select(0, places))
        total = cross_entropy(logits.float(), targets[places], reduction="sum")
        return Loss(total, total.new_full((), count), {})

    def chance(self, samples: int) -> float | None:
        """Return the logarithm of the number of tokens: a model that knows nothing expects each alike."""
        return math.log(self.model.language.get_output_embeddings().weight.shape[0])

    def questions(self, members: Mapping[str, bytes]) -> list[Question]:
        pictures = [decode_image(members[name]) for name in _pictures(members)]
        asked = []
        before, turns = _conversation(members)
        for question, answer in turns:
            found = self.ask([*before, question], pictures)
            asked.append(found._replace(expected=answer.text))
            before += [question, answer]
        return asked

    def ask(self, messages: Sequence[tuple[str, str]], pictures: Sequence[Any]) -> Question:
        grids = [self._chat.tiles.grid_of(*one.size) for one in pictures]
        tokens = self._chat.text.encode_prompt([ChatMessage(*one) for one in messages], grids)
        return Question(tokens, self._chat.cut(pictures), messages[-1][1], "")

    def answer(self, questions: Sequence[Question], most_tokens: int) -> list[str]:
        language = self.model.language
        device = language.get_input_embeddings().weight.device
        longest, end = max(len(one.tokens) for one in questions), self._chat.text.end
        tokens = torch.tensor([[end] * (longest - len(one.tokens)) + one.tokens for one in questions])
        attended = torch.tensor([[0] * (longest - len(o.tokens)) + [1] * len(o.tokens) for o in questions])
        tiles = torch.cat([one.tiles for one in questions]).to(device)
        with torch.inference_mode(), attention.masks_by_transformers(language.config):
            answers = language.generate(
                inputs_embeds=self.model.embed(tokens.to(device), tiles),
                attention_mask=attended.to(device),
                max_new_tokens=most_tokens,
                do_sample=False,
                eos_token_id=end,
                pad_token_id=end,
            )
        return [self._chat.text.decode(row) for row in answers.tolist()]


class RowCounts(NamedTuple):
    """What one row holds. The host knows it, so no shape on a GPU has to wait for a count there."""

    conversations: int
    tiles: int
    targets: int
    tokens: int
    pictures: int


def rows_of(samples: Sequence[Mapping[str, Any]]) -> Batch:
    """Collate conversations into rows: one each, or those of one `pack` side by side.

    `tokens`, `targets`, `positions` (from 0 in each conversation) and `segments` (the conversation's number
    in its row) have shape [rows, longest]; `image` [rows, most tiles, side, side, 3] starts in each row with
    `tiles` [rows] real tiles; `rows` lists the RowCounts of each.
    """
    rows: dict[int, list[Mapping[str, Any]]] = {}
    for number, sample in enumerate(samples):
        rows.setdefault(int(sample.get("pack", number)), []).append(sample)
    packs = list(rows.values())
    longest = max(sum(len(one["tokens"]) for one in pack) for pack in packs)
    most = max(sum(len(one["image"]) for one in pack) for pack in packs)

    def joined(pack: Sequence[Tensor], filler: int) -> Tensor:
        row = torch.cat(list(pack))
        return pad(row, (0, longest - len(row)), value=filler)

    def tiles_of(pack: Sequence[Mapping[str, Any]]) -> Tensor:
        tiles = torch.cat([one["image"] for one in pack])
        return pad(tiles, (0, 0, 0, 0, 0, 0, 0, most - len(tiles)))

    lengths = [[len(one["tokens"]) for one in pack] for pack in packs]
    counted = [[torch.arange(length) for length in row] for row in lengths]
    numbered = [[torch.full((length,), n) for n, length in enumerate(row)] for row in lengths]
    return {
        "tokens": torch.stack([joined([one["tokens"] for one in pack], 0) for pack in packs]),
        "targets": torch.stack([joined([one["targets"] for one in pack], NOT_A_TARGET) for pack in packs]),
        "positions": torch.stack([joined(row, 0) for row in counted]),
        "segments": torch.stack([joined(row, PADDING) for row in numbered]),
        "image": torch.stack([tiles_of(pack) for pack in packs]),
        "tiles": torch.tensor([sum(len(one["image"]) for one in pack) for pack in packs]),
        "rows": [
            [
                len(pack),
                sum(len(one["image"]) for one in pack),
                sum(int((one["targets"] != NOT_A_TARGET).sum()) for one in pack),
                sum(len(one["tokens"]) for one in pack),
                sum(one["pictures"] for one in pack),
            ]
            for pack in packs
        ],
        "key": [" ".join(one["key"] for one in pack) for pack in packs],
    }


def real_tiles(image: Tensor, tiles: Tensor, count: int) -> Tensor:
    """Return the `count` tiles of all rows, [count, side, side, 3], without padding."""
    places = torch.arange(image.shape[1], device=image.device)
    return image.flatten(0, 1).index_select(0, nonzero_of((places < tiles[:, None]).flatten(), count))


def _pictures(members: Mapping[str, bytes]) -> list[str]:
    return sorted(name for name in members if name.partition(".")[2] in MEMBERS)


def _conversation(
    members: Mapping[str, bytes],
) -> tuple[list[ChatMessage], list[tuple[ChatMessage, ChatMessage]]]:
    """Return the system message, if there is one, and the turns."""
    if "json" not in members:
        raise DataError(f"no member json among {', '.join(sorted(members))}; recipe vlm needs a conversation")
    found = decode_json(members["json"])
    try:
        turns = [
            (ChatMessage(USER, turn[USER]), ChatMessage(ASSISTANT, turn[ASSISTANT]))
            for turn in found["messages"]
        ]
        system = found.get(SYSTEM)
    except (KeyError, TypeError) as error:
        raise DataError("json: messages are not pairs of user and assistant") from error
    is_given = isinstance(system, str) and not is_blank(system)
    return [ChatMessage(SYSTEM, system)] if is_given else [], turns
