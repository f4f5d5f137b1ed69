"""Conversations to tokens as nanoVLM has them: ChatML, image tokens first, targets in the answers alone.

Source: nanoVLM's data/datasets.py and data/processors.py. Each picture becomes `<|global_image|>` and its
image tokens and, where it is cut into several tiles, each tile's `<row_r_col_c>` and its image tokens. Where
the text marks the places of pictures by `<image>`, they stand there instead. Only the tokenizers library is
needed, not transformers, which takes seconds to import in every loader worker.
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
"""nanoVLM has names for 8 x 8 tiles, whatever number a picture is cut into."""
USER, ASSISTANT = "user", "assistant"
NOT_A_TARGET = -100

Grid = tuple[int, int]
"""Rows and columns of the tiles of one picture."""


class ChatMessage(NamedTuple):
    """What one side says."""

    role: str
    text: str


class Encoded(NamedTuple):
    """A conversation in tokens; `targets[i]` is the token after `tokens[i]` where that is the assistant's,
    else NOT_A_TARGET."""

    tokens: list[int]
    targets: list[int]


class ChatText:
    """A tokenizer with the tokens that conversations about pictures need. Picklable by its name.

    `tokens_per_tile` is what the projector makes of a tile; `grid` the most tiles a side.
    """

    def __init__(self, name: str, tokens_per_tile: int, grid: int) -> None:
        self._name, self.tokens_per_tile, self.grid = name, tokens_per_tile, max(grid, LEAST_GRID)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_name", "tokens_per_tile", "grid")}

    @property
    def size(self) -> int:
        """How many rows the language model's table of embeddings needs."""
        size: int = self.tokenizer.get_vocab_size(with_added_tokens=True)
        return size

    @cached_property
    def image(self) -> int:
        """The token that a picture's embeddings replace."""
        return self._id(IMAGE)

    @cached_property
    def end(self) -> int:
        """The token that ends a message."""
        return self._id(END)

    def encode(self, messages: Sequence[ChatMessage], grids: Sequence[Grid]) -> Encoded:
        """The conversation about pictures cut into these grids."""
        tokens: list[int] = []
        is_answer: list[bool] = []
        for message in self._with_pictures(messages, grids):
            found = self._ids(f"{START}{message.role}\n{message.text}{END}\n")
            prefix = self._prefix if message.role == ASSISTANT else len(found)
            tokens += found
            is_answer += [place >= prefix for place in range(len(found))]
        follow = zip(tokens[1:], is_answer[1:], strict=True)
        return Encoded(tokens, [*(token if said else NOT_A_TARGET for token, said in follow), NOT_A_TARGET])

    def encode_prompt(self, messages: Sequence[ChatMessage], grids: Sequence[Grid]) -> list[int]:
        """What an answer follows on."""
        return [*self.encode(messages, grids).tokens, *self._ids(f"{START}{ASSISTANT}\n")]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text before the message's end."""
        shown = list(tokens)
        shown = shown[: shown.index(self.end)] if self.end in shown else shown
        text: str = self.tokenizer.decode(shown)
        return text

    def _with_pictures(self, messages: Sequence[ChatMessage], grids: Sequence[Grid]) -> list[ChatMessage]:
        """The pictures stand where the texts mark their places, or else before the first message."""
        shown = [message._replace(text=message.text.replace(IMAGE, "")) for message in messages]
        names = [self._picture(number, grid, len(grids)) for number, grid in enumerate(grids)]
        marks = [mark for message in shown if message.role == USER for mark in _marks(message.text)]
        if not grids or not marks:
            return [shown[0]._replace(text="".join(names) + shown[0].text), *shown[1:]]
        left = iter(names)

        def placed(text: str) -> str:
            return PLACEHOLDER.sub(lambda mark: names[int(mark[1]) - 1] if mark[1] else next(left), text)

        return [one._replace(text=placed(one.text)) if one.role == USER else one for one in shown]

    def _picture(self, number: int, grid: Grid, pictures: int) -> str:
        tile = IMAGE * self.tokens_per_tile
        name = f"<image: {number}>" if pictures > 1 else ""
        rows, columns = grid
        parts = [
            f"<row_{row}_col_{column}>{tile}"
            for row in range(1, rows + 1)
            for column in range(1, columns + 1)
            if grid != (1, 1)
        ]
        return f"{name}{WHOLE}{tile}{''.join(parts)}"

    @cached_property
    def _prefix(self) -> int:
        return len(self._ids(f"{START}{ASSISTANT}\n"))

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _id(self, token: str) -> int:
        number: int = self.tokenizer.token_to_id(token)
        return number

    @cached_property
    def tokenizer(self) -> Any:
        """Of the tokenizers library."""
        return _tokenizer_of(self._name, self.grid)


def _marks(text: str) -> list[str]:
    found: list[str] = PLACEHOLDER.findall(text)
    return found


@cache
def _tokenizer_of(name: str, grid: int) -> Any:
    """With the special tokens added at its end, in nanoVLM's order."""
    from tokenizers import AddedToken, Tokenizer

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # workers are processes already
    tokenizer = _of_bytes() if name == TINY else Tokenizer.from_file(str(file_of(name, "tokenizer.json")))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, grid + 1) for column in range(1, grid + 1)]
    # What a tokenizer knows already keeps its number.
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in (START, END, IMAGE, WHOLE, *tiles)]
    )
    return tokenizer


def _of_bytes() -> Any:
    """A token a byte: any text, no training, and nothing to download."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={sign: n for n, sign in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def file_of(name: str, file: str) -> Path:
    """A file of a model of transformers: in the folder `name`, or of the hub's repository of that name.

    UsageError for a name that is neither, DataError where the hub does not answer and has not before.
    """
    if os.path.isdir(name):
        path = Path(name, file)
        if path.is_file():
            return path
        raise UsageError(f"train.model: the folder {name} holds no {file}; save model and tokenizer there")
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
            f"train.model: {file} of {name} is not on this machine, and the hub does not answer; "
            "download it where there is a network"
        ) from error
    except (HFValidationError, RepositoryNotFoundError):
        raise UsageError(f"train.model: {name!r} is neither a folder nor a model of the hub") from None
    except EntryNotFoundError:
        raise UsageError(f"train.model: {name} has no {file}") from None
    except OSError as error:
        says = first_line(error)
        raise DataError(f"train.model: {file} of {name} cannot be downloaded: {says}") from error
