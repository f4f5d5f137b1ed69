"""Vision-language models in nanoVLM's design: a vision tower, a projector, a causal language model.

Source: nanoVLM (github.com/huggingface/nanoVLM), whose tokens, tiles and projector are kept. Three things are
done otherwise: the loss is the sum over all answers' tokens of a step by their number, on every rank and in
every part of a batch, where nanoVLM takes the mean of means; packed conversations do not see each other; and
logits are computed where the loss needs them only, which saves most of the memory of a large vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from tasks.core.errors import DataError, UsageError
from tasks.loader.collate import Batch, Collate
from tasks.loader.decoders import decode_image, decode_json, picture_size
from tasks.loader.workers import Transform
from tasks.models.task import Answerer, Loss, Question, Task
from tasks.models.vlm.chat_text import ASSISTANT, NOT_A_TARGET, USER, ChatMessage, ChatText
from tasks.models.vlm.tiles import Tiles
from tasks.models.vlm.vlm_options import VlmOptions
from tasks.models.vlm.vlm_towers import (
    Projector,
    VisionTower,
    build_language,
    build_vision,
    measure_width,
    vision_side,
)

PADDING = -1
"""The segment of what fills a row up."""
PICTURES = ("jpg", "png", "webp")


class Chat(NamedTuple):
    """What turns conversations into what the model is given. Picklable."""

    text: ChatText
    tiles: Tiles

    def transform(self, sample: Mapping[str, bytes]) -> dict[str, Any]:
        """Members to `tokens` and `targets` [length] int64 and `image` [tiles, side, side, 3] uint8."""
        messages = [message for turn in _turns(sample) for message in turn]
        pictures = [decode_image(sample[name]) for name in _pictures(sample)]
        tokens, targets = self.text.encode(messages, [self.tiles.grid_of(*one.size) for one in pictures])
        return {
            "tokens": torch.tensor(tokens),
            "targets": torch.tensor(targets),
            "image": self.cut(pictures),
        }

    def cut(self, pictures: Sequence[Any]) -> Tensor:
        """The tiles of all pictures, [tiles, side, side, 3] uint8; of none where there are no pictures."""
        if not pictures:
            return torch.empty(0, self.tiles.side, self.tiles.side, 3, dtype=torch.uint8)
        return torch.cat([self.tiles.cut(picture) for picture in pictures])


class ChatTransform:
    """The transform of a recipe; nothing about it is random, as in nanoVLM."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    def __call__(self, sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
        return self._chat.transform(sample)

    def measure(self, sample: Mapping[str, bytes]) -> tuple[int, int]:
        """How many tokens and images the sample has, for packing; the images are not decoded."""
        grids = [self._chat.tiles.grid_of(*picture_size(sample[name])) for name in _pictures(sample)]
        messages = [message for turn in _turns(sample) for message in turn]
        return len(self._chat.text.encode(messages, grids).tokens), len(grids)


class VlmRecipe:
    """Vision-language models by their parts' names, trained as by nanoVLM."""

    collate: Collate
    adam: Mapping[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8}
    """torch's own, which nanoVLM takes."""

    def __init__(self, options: VlmOptions) -> None:
        self._options = options
        self.collate = rows_of

    @cached_property
    def chat(self) -> Chat:
        """UsageError when picture, tile, patches and projector do not fit each other."""
        options = self._options
        side, patches = vision_side(options.vision)
        if options.max_side % side:
            raise UsageError(
                f"train.model.max_side: {options.max_side} pixels are no whole number of tiles, which are "
                f"{side} wide for {options.vision}; take {max(options.max_side // side, 1) * side}"
            )
        if patches % options.pixel_shuffle:
            raise UsageError(
                f"train.model.pixel_shuffle: {options.vision} sees {patches} patches a side, which do not "
                f"divide by {options.pixel_shuffle}"
            )
        tiles = Tiles(side, options.max_side, options.upscale)
        tokens_per_tile = (patches // options.pixel_shuffle) ** 2
        return Chat(ChatText(options.language, tokens_per_tile, tiles.grid), tiles)

    def build_model(self, *, pretrained: bool = True) -> nn.Module:
        options, chat = self._options, self.chat
        vision = build_vision(options.vision, options.vision_pretrained, pretrained=pretrained)
        language = build_language(options.language, chat.text.size, pretrained=pretrained)
        language_width = language.get_input_embeddings().embedding_dim
        projector = Projector(options.pixel_shuffle, measure_width(vision), language_width)
        return VisionLanguageModel(vision, projector, language, chat.text.image)

    def task(self, model: nn.Module) -> VlmTask:
        return VlmTask(model, self.chat)

    def transform(self, is_train: bool) -> Transform:
        return ChatTransform(self.chat)

    def part_of(self, name: str) -> str:
        return name.partition(".")[0]

    def is_decayed(self, name: str, parameter: Tensor) -> bool:
        return parameter.ndim >= 2


class VisionLanguageModel(nn.Module):
    """The three parts; `image_token` is the one that the projected tiles replace, in their order."""

    def __init__(self, vision: VisionTower, projector: Projector, language: Any, image_token: int) -> None:
        super().__init__()
        self.vision, self.projector, self.language = vision, projector, language
        self._image_token = image_token

    def forward(self, tokens: Tensor, tiles: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        """The features that the language model's head takes, [rows, length, width].

        `tokens` and `positions` have shape [rows, length], `tiles` [tiles, side, side, 3] uint8, and `mask`
        [rows, 1, length, length], true where a token sees another; None for all before it.
        """
        found: Tensor = self.language.base_model(
            inputs_embeds=self.embed(tokens, tiles),
            attention_mask=mask,
            position_ids=positions,
            use_cache=False,
        ).last_hidden_state
        return found

    def embed(self, tokens: Tensor, tiles: Tensor) -> Tensor:
        """[rows, length, width]: of the tokens, or of the tiles' parts where the image token stands."""
        embedded: Tensor = self.language.get_input_embeddings()(tokens)
        if not len(tiles) and not self.training:
            return embedded
        # Without any picture, a blank one: ranks wait for the gradients of all that is trained.
        blank = tiles.new_zeros(1, self.vision.side, self.vision.side, 3)
        pixels = (tiles if len(tiles) else blank).permute(0, 3, 1, 2).to(
            self.projector.linear.weight.dtype
        ) / 255
        projected = self.projector(self.vision(pixels)).to(embedded.dtype)
        if not len(tiles):
            unchanged: Tensor = embedded + 0 * projected.sum()
            return unchanged
        is_image = (tokens == self._image_token).unsqueeze(-1)
        return embedded.masked_scatter(is_image, projected)


class VlmTask(Task, Answerer):
    """The model with the cross-entropy of the answers' tokens; it answers with the likeliest words."""

    def __init__(self, model: nn.Module, chat: Chat) -> None:
        super().__init__(model)
        self._chat = chat

    def forward(self, batch: Mapping[str, Any]) -> Loss:
        targets, segments = batch["targets"], batch["segments"]
        tiles = real_tiles(batch["image"], batch["tiles"])
        features = self.model(batch["tokens"], tiles, block_mask(segments), batch["positions"])
        is_target = targets != NOT_A_TARGET
        logits = self.model.language.get_output_embeddings()(features[is_target])
        total = cross_entropy(logits.float(), targets[is_target], reduction="sum")
        fill = (segments != PADDING).float().mean()
        return Loss(total, is_target.sum().float(), {"fill": fill})

    def questions(self, members: Mapping[str, bytes]) -> list[Question]:
        pictures = [decode_image(members[name]) for name in _pictures(members)]
        asked, before = [], list[ChatMessage]()
        for question, answer in _turns(members):
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
        seen = torch.tensor([[0] * (longest - len(o.tokens)) + [1] * len(o.tokens) for o in questions])
        tiles = torch.cat([one.tiles for one in questions]).to(device)
        with torch.inference_mode():
            said = language.generate(
                inputs_embeds=self.model.embed(tokens.to(device), tiles),
                attention_mask=seen.to(device),
                max_new_tokens=most_tokens,
                do_sample=False,
                eos_token_id=end,
                pad_token_id=end,
            )
        return [self._chat.text.decode(row) for row in said.tolist()]


def rows_of(samples: Sequence[Mapping[str, Any]]) -> Batch:
    """Conversations to rows: one each, or those of one `pack` side by side.

    `tokens`, `targets`, `positions` (from 0 in each conversation) and `segments` (the conversation's number
    in its row) have shape [rows, longest]; `image` [rows, most tiles, side, side, 3] holds `tiles` [rows]
    real ones in each row, which come first.
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
        "key": [" ".join(one["key"] for one in pack) for pack in packs],
    }


def real_tiles(image: Tensor, tiles: Tensor) -> Tensor:
    """[tiles of all rows, side, side, 3] without what fills rows up."""
    places = torch.arange(image.shape[1], device=image.device)
    return image[places < tiles[:, None]]


def block_mask(segments: Tensor) -> Tensor | None:
    """[rows, 1, length, length], true where a token sees another: one of its own conversation, not after it.

    None where no row holds two: what fills a row up comes last, and nothing before it sees it.
    """
    if int(segments.max()) < 1:
        return None
    length = segments.shape[1]
    is_before = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    same = segments[:, :, None] == segments[:, None, :]
    return (same & is_before)[:, None]


def _pictures(members: Mapping[str, bytes]) -> list[str]:
    return sorted(name for name in members if name.partition(".")[2] in PICTURES)


def _turns(members: Mapping[str, bytes]) -> list[tuple[ChatMessage, ChatMessage]]:
    if "json" not in members:
        raise DataError(f"no member json among {', '.join(sorted(members))}; recipe vlm needs a conversation")
    found = decode_json(members["json"])
    try:
        return [
            (ChatMessage(USER, turn[USER]), ChatMessage(ASSISTANT, turn[ASSISTANT]))
            for turn in found["messages"]
        ]
    except (KeyError, TypeError) as error:
        raise DataError("json: messages are no pairs of user and assistant") from error
