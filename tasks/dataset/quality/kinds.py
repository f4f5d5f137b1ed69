"""The kinds of samples that an assessment looks for: what they are called, the code and words of a finding,
and the filter that leaves them out. Examination, verdict and page go by this one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tasks.core.findings import Severity


@dataclass(frozen=True)
class ProposedFilter:
    """A rule of `dataset.filter`: a statistic's lowest value, or the highest if `is_most`, or its words. What
    does not meet the rule is of the kind."""

    name: str
    limit: float | Sequence[str]
    is_most: bool = False

    @property
    def value(self) -> Any:
        """The rule as the config has it."""
        if isinstance(self.limit, Sequence):
            return list(self.limit)
        return {"max": self.limit} if self.is_most else self.limit

    @property
    def text(self) -> str:
        """The rule as YAML on one line."""
        if isinstance(self.limit, Sequence):
            return f"[{', '.join(self.limit)}]"
        return f"{{max: {self.limit:g}}}" if self.is_most else f"{self.limit:g}"


@dataclass(frozen=True)
class QualityKind:
    """A kind of samples.

    `words` say in a finding what they are, `fix` what to do, where a `filter` is the rest of the sentence.
    `colour` is the value of that statistic which they have. With `shows_detail`, pictures of one colour
    are not judged. Below 1 % a kind is a finding of `when_rare`, and none for None; more than `usual` of the
    samples are the style of the set. `value` names what an example's note says on the page, and `note` where
    it belongs: to each tile, or to the heading because all share it.
    """

    name: str
    code: str
    title: str
    words: str
    fix: str
    filter: ProposedFilter | None = None
    colour: str = ""
    shows_detail: bool = False
    when_rare: Severity | None = None
    usual: float = 1.0
    value: str = ""
    note: Literal["tile", "heading", "nowhere"] = "tile"

    @property
    def remedy(self) -> str:
        rule = self.filter
        leaves_out = "" if rule is None else f"set dataset.filter.{rule.name}: {rule.text} to leave them out"
        return self.fix + leaves_out


PLAIN_COLOURS = ProposedFilter("colour", ("rgb", "grey"))

PICTURE_KINDS = (
    QualityKind(
        "constant",
        "images.constant",
        "Of one colour",
        "pictures of one colour",
        "",
        ProposedFilter("contrast", 1.5),  # `measures.CONSTANT`, without the import of numpy
        value="contrast",
    ),
    QualityKind(
        "blurred",
        "images.blurred",
        "Without detail",
        "pictures without detail: blurred, or enlarged from a few pixels",
        "look at them, then ",
        ProposedFilter("sharpness", 0.3),
        shows_detail=True,
        value="sharpness",
    ),
    QualityKind(
        "bordered",
        "images.bordered",
        "Inside a border or bar",
        "pictures inside a plain border or bar",
        "crop them, or ",
        ProposedFilter("border", 0.15, is_most=True),
        shows_detail=True,
        usual=0.5,
        value="border",
    ),
    QualityKind(
        "animated",
        "images.animated",
        "Animations",
        "animations, of which only the first picture is used",
        "",
        ProposedFilter("frames", 1, is_most=True),
        when_rare="info",
        value="pictures",
    ),
    QualityKind(
        "cmyk",
        "images.colour",
        "In CMYK",
        "CMYK pictures, whose colours readers of the shards disagree about",
        "convert them to sRGB, or ",
        PLAIN_COLOURS,
        colour="cmyk",
        when_rare="warning",
    ),
    QualityKind(
        "deep",
        "images.colour",
        "With 16 bits per channel",
        "pictures with 16 bits per channel, which some readers of the shards show white",
        "convert them to 8 bits, or ",
        PLAIN_COLOURS,
        colour="deep",
        when_rare="warning",
    ),
    QualityKind(
        "profile",
        "images.colour",
        "With another colour profile than sRGB",
        "pictures with another colour profile than sRGB, which training ignores",
        "convert them to sRGB, or leave them if a slight shift of colours does not matter",
        colour="profile",
    ),
)
CAPTION_KINDS = (
    QualityKind(
        "empty",
        "captions.meaningless",
        "Captions that say nothing",
        "captions that say nothing, such as a file's name",
        "write captions, or ",
        ProposedFilter("caption_words", 1),
    ),
    QualityKind(
        "boilerplate",
        "captions.boilerplate",
        "Captions with a common beginning or end",
        "captions that share a beginning or end",
        "cut it from the captions, or leave such samples out; a model learns it by heart",
        when_rare="info",
        note="heading",
    ),
    QualityKind(
        "language",
        "captions.language",
        "Captions in another language than most",
        "captions in another language than most",
        "leave them out of the source, unless the model is to learn several languages",
        note="nowhere",
    ),
    QualityKind(
        "truncated",
        "text.truncated",
        "Captions that CLIP cuts off",
        "captions longer than the 77 tokens that CLIP reads",
        "shorten them, with what matters first; or use a model with a longer context",
    ),
)
"""The kinds in the order of findings and of the page."""
