"""Turn conversations into nanoVLM's tokens: ChatML, image tokens first, targets only in the answers.

A system message, which nanoVLM's data have none of, stands before the first turn, as ChatML has it.

Source: nanoVLM's data/datasets.py and data/processors.py. Each picture becomes `<|global_image|>` and its
image tokens and, where it is cut into several tiles, each tile's `<row_r_col_c>` and its image tokens. Where
the text marks the places of pictures by `<image>`, they are inserted there instead. Only the tokenizers
library is needed, not transformers, which takes seconds to import in every loader worker.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from tasks.core.errors import DataError, UsageError, first_line
from tasks.dataset.modalities.chat import PLACEHOLDER
from tasks.models.vlm.vlm_options import TINY

START, END = "<|im_start|>", "<|im_end|>"
IMAGE, WHOLE = "<|image|>", "<|global_image|>"
LEAST_GRID = 8
"""nanoVLM defines names for 8 x 8 tiles, however many a picture is cut into."""
USER, ASSISTANT, SYSTEM = "user", "assistant", "system"
NOT_A_TARGET = -100

Grid = tuple[int, int]
"""Rows and columns of the tiles of one picture."""


class ChatMessage(NamedTuple):
    """One turn of a conversation."""

    role: str
    text: str


class Encoded(NamedTuple):
    """A conversation in tokens; `targets[i]` is the token after `tokens[i]` where the assistant wrote it,
    else NOT_A_TARGET."""

    tokens: list[int]
    targets: list[int]


class ChatText:
    """A tokenizer with the tokens that conversations about pictures need; it is pickled by its name.

    `tokens_per_tile` is the number of tokens that the projector makes of a tile, and `grid` the most tiles
    per side.
    """

    def __init__(self, name: str, tokens_per_tile: int, grid: int) -> None:
        self._name, self.tokens_per_tile, self.grid = name, tokens_per_tile, max(grid, LEAST_GRID)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_name", "tokens_per_tile", "grid")}

    @property
    def shape(self) -> list[Any]:
        """All that decides on how many tokens a conversation has."""
        return [self.tokenizer.to_str(), self.tokens_per_tile, self.grid]

    @property
    def size(self) -> int:
        """The number of rows that the language model's embedding table needs."""
        size: int = self.tokenizer.get_vocab_size(with_added_tokens=True)
        return size

    @cached_property
    def image(self) -> int:
        """The token that a picture's embeddings replace."""
        return int(self.tokenizer.token_to_id(IMAGE))

    @cached_property
    def end(self) -> int:
        """The token that ends a message."""
        return int(self.tokenizer.token_to_id(END))

    def encode(self, messages: Sequence[ChatMessage], grids: Sequence[Grid]) -> Encoded:
        """Encode a conversation about pictures that are cut into these grids."""
        tokens: list[int] = []
        is_answer: list[bool] = []
        for message in self._with_pictures(messages, grids):
            ids = self._ids(f"{START}{message.role}\n{message.text}{END}\n")
            prefix = len(self._answer_start) if message.role == ASSISTANT else len(ids)
            tokens += ids
            is_answer += [place >= prefix for place in range(len(ids))]
        following = zip(tokens[1:], is_answer[1:], strict=True)
        targets = [token if is_target else NOT_A_TARGET for token, is_target in following]
        return Encoded(tokens, [*targets, NOT_A_TARGET])

    def encode_prompt(self, messages: Sequence[ChatMessage], grids: Sequence[Grid]) -> list[int]:
        """Encode a conversation up to the start of the assistant's answer, or up to the end of a last message
        of the assistant's, which the answer is to continue."""
        *before, last = messages
        if not before or last.role != ASSISTANT:
            return [*self.encode(messages, grids).tokens, *self._answer_start]
        begun = last.text.replace(IMAGE, "")
        return [*self.encode(before, grids).tokens, *self._ids(f"{START}{ASSISTANT}\n{begun}")]

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode the text up to the end of the message."""
        shown = list(tokens)
        shown = shown[: shown.index(self.end)] if self.end in shown else shown
        text: str = self.tokenizer.decode(shown)
        return text

    def _with_pictures(self, messages: Sequence[ChatMessage], grids: Sequence[Grid]) -> list[ChatMessage]:
        """Insert the pictures where the texts mark their places, or else before the user's first message."""
        shown = [message._replace(text=message.text.replace(IMAGE, "")) for message in messages]
        names = [self._picture(number, grid, len(grids)) for number, grid in enumerate(grids)]
        is_marked = any(PLACEHOLDER.search(message.text) for message in shown if message.role == USER)
        if not grids or not is_marked:
            first = next((place for place, message in enumerate(shown) if message.role == USER), 0)
            opening = shown[first]._replace(text="".join(names) + shown[first].text)
            return [*shown[:first], opening, *shown[first + 1 :]]
        left = iter(names)

        def insert(text: str) -> str:
            return PLACEHOLDER.sub(lambda mark: names[int(mark[1]) - 1] if mark[1] else next(left), text)

        return [one._replace(text=insert(one.text)) if one.role == USER else one for one in shown]

    def _picture(self, number: int, grid: Grid, pictures: int) -> str:
        tile = IMAGE * self.tokens_per_tile
        name = f"<image: {number}>" if pictures > 1 else ""
        parts = [] if grid == (1, 1) else [f"{place}{tile}" for place in _tile_names(*grid)]
        return f"{name}{WHOLE}{tile}{''.join(parts)}"

    @cached_property
    def _answer_start(self) -> list[int]:
        return self._ids(f"{START}{ASSISTANT}\n")

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    @cached_property
    def tokenizer(self) -> Any:
        """A tokenizer of the tokenizers library."""
        return _tokenizer_of(self._name, self.grid)


def _tile_names(rows: int, columns: int) -> list[str]:
    return [f"<row_{row}_col_{column}>" for row in range(1, rows + 1) for column in range(1, columns + 1)]


@cache
def _tokenizer_of(name: str, grid: int) -> Any:
    """Load the tokenizer and add the special tokens at its end, in nanoVLM's order."""
    from tokenizers import AddedToken, Tokenizer

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # workers are processes already
    tokenizer = (
        _byte_tokenizer() if name == TINY else Tokenizer.from_file(str(file_of(name, "tokenizer.json")))
    )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # A token that the tokenizer knows already keeps its number.
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in added_tokens(grid)]
    )
    return tokenizer


def added_tokens(grid: int) -> tuple[str, ...]:
    """Return the tokens that a text tokenizer may lack, for up to `grid` tiles per side."""
    return (START, END, IMAGE, WHOLE, *_tile_names(grid, grid))


def _byte_tokenizer() -> Any:
    """One token per byte: it takes any text and needs neither training nor a download."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={sign: n for n, sign in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def file_of(name: str, file: str, key: str = "train.model") -> Path:
    """Return a file of a transformers model: from the folder `name`, or from the hub's repository of that
    name. `key` is the config key that names it.

    Raises UsageError for a name that is neither, DataError where the file is not cached and the hub does not
    answer.
    """
    if os.path.isdir(name):
        path = Path(name, file)
        if path.is_file():
            return path
        raise UsageError(f"{key}: the folder {name} holds no {file}; save model and tokenizer there")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(hf_hub_download(name, file))
    except LocalEntryNotFoundError as error:
        raise DataError(
            f"{key}: {file} of {name} is not on this machine, and the hub does not answer; "
            "download it where there is a network"
        ) from error
    except (HFValidationError, RepositoryNotFoundError):
        raise UsageError(f"{key}: {name!r} is neither a folder nor a model of the hub") from None
    except EntryNotFoundError:
        raise UsageError(f"{key}: {name} has no {file}") from None
    except OSError as error:
        problem = first_line(error)
        raise DataError(f"{key}: {file} of {name} cannot be downloaded: {problem}") from error
