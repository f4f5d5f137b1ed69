"""Text towers that read reports: a small one of Tarmac's, open_clip's, and encoders of transformers.

What training and evaluation read of a report is the same text, through the same tokenizer. CT-CLIP trains on
findings and evaluates findings with impressions; here `dataset.source.reports.text` decides once what a
report is.
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
"""Characters that CT-CLIP takes out of reports (scripts/data.py)."""
VOCABULARY, CONTEXT, WIDTH, HEADS = 2048, 96, 64, 4
WORDS = re.compile(r"[^\W_]+|[^\w\s]")


class ReportTower(ABC):
    """A kind of text tower; picklable, as its tokenizer works in loader workers."""

    pad: int | None = None
    """The token behind the end of a shorter text, which batches of short texts go without; None for a tower
    that has to be given all."""
    context: int
    """How many tokens it is given."""

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """[texts, context] int64."""
        return self._tokens([text.translate(LEFT_OUT) for text in texts])

    def trimmed(self, tokens: Tensor) -> Tensor:
        """Without the columns in which no text has a token."""
        if self.pad is None:
            return tokens
        return tokens[:, : max(int((tokens != self.pad).sum(1).max()), 1)]

    @abstractmethod
    def _tokens(self, texts: Sequence[str]) -> Tensor: ...

    @abstractmethod
    def build(self, *, pretrained: bool) -> tuple[nn.Module, int]:
        """The tower and the width of what it gives; without its weights where others will replace them."""

    @abstractmethod
    def read(self, tower: Any, tokens: Tensor) -> Tensor:
        """[texts, width]: what it makes of the texts."""


def reports_of(options: CtClipOptions) -> ReportTower:
    """UsageError for a model of transformers that cannot be had."""
    if options.text_kind == "tarmac":
        return TarmacReports()
    if options.text_kind == "open_clip":
        return OpenClipReports(options.text, options.text_weights)
    return TransformersReports(options.text)


class TarmacReports(ReportTower):
    """One layer over words, whose numbers are checksums: no vocabulary has to be made or kept.

    Two words may share a number; of the few hundred words of a field's reports hardly any do.
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

    def read(self, tower: Any, tokens: Tensor) -> Tensor:
        found: Tensor = tower(tokens)
        return found


class WordTower(nn.Module):
    """[texts, words], where 0 is no word, to [texts, width]: the mean of what a layer makes of the words."""

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
    """The text tower of one of open_clip's models; its images' tower is left."""

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
            model = open_clip.create_model(self._name, pretrained=weights, force_custom_text=True)
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            problem = first_line(error)
            raise UsageError(
                f"train.model.text_weights: {weights} is none of {self._name}: {problem}"
            ) from error
        return model.text, int(open_clip.get_model_config(self._name)["embed_dim"])

    def read(self, tower: Any, tokens: Tensor) -> Tensor:
        found: Tensor = tower(tokens)
        return found


class TransformersReports(ReportTower):
    """An encoder of transformers, by what it makes of a text's first token, as CT-CLIP takes CXR-BERT's.

    Code that a model brings is never run: a kind that transformers does not know, as CXR-BERT's, is taken for
    a BERT, which is what CT-CLIP does too.
    """

    def __init__(self, name: str) -> None:
        import transformers

        self._name = name
        try:
            about, _ = transformers.PretrainedConfig.get_config_dict(name)
            is_known = about.get("model_type") in transformers.CONFIG_MAPPING
            kinds = (transformers.AutoConfig, transformers.AutoTokenizer) if is_known else _of_bert()
            self._config = kinds[0].from_pretrained(name)
            self.tokenizer = kinds[1].from_pretrained(name)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"train.model.text: {name!r} is no model of open_clip, and transformers does not load it: "
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
        tower.pooler = None  # which would be weights that no loss reaches
        return tower, int(self._config.hidden_size)

    def read(self, tower: Any, tokens: Tensor) -> Tensor:
        found: Tensor = tower(
            input_ids=tokens, attention_mask=torch.ne(tokens, self._padding).long()
        ).last_hidden_state
        return found[:, 0]


def _of_bert() -> tuple[Any, Any]:
    import transformers

    return transformers.BertConfig, transformers.BertTokenizer
