"""Text towers that read reports: Tarmac's small one, open_clip's, and encoders of transformers.

Training and evaluation read the same text of a report with the same tokenizer. CT-CLIP trains on findings and
evaluates on findings with impressions; here `dataset.source.reports.text` decides once what a report is.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from tasks.core.errors import UsageError, first_line
from tasks.models.ct.ct_clip_options import LONGEST, CtClipOptions

LEFT_OUT = str.maketrans("", "", "\"'()")
"""Characters that CT-CLIP removes from reports (scripts/data.py)."""
VOCABULARY, CONTEXT, WIDTH, HEADS = 2048, 96, 64, 4
WORDS = re.compile(r"[^\W_]+|[^\w\s]")


class ReportTower(ABC):
    """A kind of text tower; picklable, because loader workers use its tokenizer."""

    pad: int | None = None
    """The token that pads shorter texts, which `trimmed` cuts off; None for a tower that needs all
    columns."""
    context: int
    """The number of tokens per text."""

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Return [texts, context] int64."""
        return self._tokens([text.translate(LEFT_OUT) for text in texts])

    def trimmed(self, tokens: Tensor) -> Tensor:
        """Cut off the columns in which no text has a token."""
        if self.pad is None:
            return tokens
        return tokens[:, : max(int((tokens != self.pad).sum(1).max()), 1)]

    @abstractmethod
    def _tokens(self, texts: Sequence[str]) -> Tensor: ...

    @abstractmethod
    def build(self, *, pretrained: bool) -> tuple[nn.Module, int]:
        """Return the tower and the width of its output; without its weights where others will
        replace them."""

    def read(self, tower: Any, tokens: Tensor) -> Tensor:
        """Encode the texts: [texts, width]."""
        encoded: Tensor = tower(tokens)
        return encoded


def reports_of(options: CtClipOptions) -> ReportTower:
    """Return the text tower of these options; UsageError for a transformers model that does not load."""
    if options.text_kind == "tarmac":
        return TarmacReports()
    if options.text_kind == "open_clip":
        return OpenClipReports(options.text, options.text_weights)
    return TransformersReports(options.text)


class TarmacReports(ReportTower):
    """One layer over words, whose token numbers are checksums, so that there is no vocabulary to make or
    store.

    Two words may share a number; among the few hundred words of a field's reports hardly any do.
    """

    pad, context = 0, CONTEXT

    def _tokens(self, texts: Sequence[str]) -> Tensor:
        tokens = torch.zeros(len(texts), CONTEXT, dtype=torch.int64)
        for row, text in zip(tokens, texts, strict=True):
            words = WORDS.findall(text.lower())[:CONTEXT] or [""]
            row[: len(words)] = torch.tensor([1 + crc32(word.encode()) % (VOCABULARY - 1) for word in words])
        return tokens

    def build(self, *, pretrained: bool) -> tuple[nn.Module, int]:
        return WordTower(), WIDTH


class WordTower(nn.Module):
    """Maps [texts, words], where 0 is no word, to [texts, width]: the mean of a layer's output
    over the words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        is_word = words != 0
        read = self.words(words) + self.places[: words.shape[1]]
        read = self.norm(self.layer(read, src_key_padding_mask=~is_word))
        share = is_word / is_word.sum(1, keepdim=True)
        found: Tensor = (read * share[..., None]).sum(1)
        return found


class OpenClipReports(ReportTower):
    """The text tower of an open_clip model, without its image tower."""

    def __init__(self, name: str, weights: str | None) -> None:
        from tasks.models.clip.openclip import open_clip

        self._name, self._weights = name, weights
        self._tokenizer = open_clip.get_tokenizer(name)
        self.context = self._tokenizer.context_length

    def _tokens(self, texts: Sequence[str]) -> Tensor:
        tokens: Tensor = self._tokenizer(list(texts))
        return tokens

    def build(self, *, pretrained: bool) -> tuple[nn.Module, int]:
        from tasks.models.clip.openclip import open_clip

        weights = self._weights if pretrained else None
        try:
            model = open_clip.create_model(
                self._name, pretrained=weights, force_custom_text=True, device=torch.get_default_device()
            )
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise UsageError(
                f"train.model.text_weights: {weights} does not load into {self._name}: {first_line(error)}"
            ) from error
        return model.text, int(open_clip.get_model_config(self._name)["embed_dim"])


class TransformersReports(ReportTower):
    """An encoder of transformers, whose output for the first token is used, as CT-CLIP does with CXR-BERT.

    Code that a model brings is never run: a kind that transformers does not know, such as CXR-BERT's, is
    loaded as a BERT, which is what CT-CLIP does too.
    """

    def __init__(self, name: str) -> None:
        import transformers

        self._name = name
        try:
            about, _ = transformers.PretrainedConfig.get_config_dict(name)
            is_known = about.get("model_type") in transformers.CONFIG_MAPPING
            config = transformers.AutoConfig if is_known else transformers.BertConfig
            tokenizer = transformers.AutoTokenizer if is_known else transformers.BertTokenizer
            self._config = config.from_pretrained(name)
            self.tokenizer = tokenizer.from_pretrained(name)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"train.model.text: {name!r} is not a model of open_clip, and transformers cannot load it: "
                f"{first_line(error)}"
            ) from error
        self._kind = transformers.AutoModel if is_known else transformers.BertModel
        self.pad = self._padding = int(self.tokenizer.pad_token_id)
        most = getattr(self._config, "max_position_embeddings", LONGEST)
        self.context = min(LONGEST, most, self.tokenizer.model_max_length)

    def _tokens(self, texts: Sequence[str]) -> Tensor:
        tokens: Tensor = self.tokenizer(
            list(texts), padding="max_length", truncation=True, max_length=self.context, return_tensors="pt"
        ).input_ids
        return tokens

    def build(self, *, pretrained: bool) -> tuple[nn.Module, int]:
        if pretrained:
            tower = self._kind.from_pretrained(self._name, config=self._config, dtype=torch.float32)
        elif hasattr(self._kind, "from_config"):
            tower = self._kind.from_config(self._config, dtype=torch.float32)
        else:
            tower = self._kind(self._config)
        tower.pooler = None  # no loss would reach its weights
        return tower, int(self._config.hidden_size)

    def read(self, tower: Any, tokens: Tensor) -> Tensor:
        found: Tensor = tower(
            input_ids=tokens, attention_mask=torch.ne(tokens, self._padding).long()
        ).last_hidden_state
        return found[:, 0]
