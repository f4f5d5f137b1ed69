"""The measured figures in the text of pages, and the kept measurement that each is read from.

    python -m tests.docs.figures       writes into the pages what tests/benchmarks/results holds now

Pages that are made of such files as a whole have tests of their own: docs/benchmarks.md, docs/claims.md, docs/scale.md,
docs/matrices and the lists of docs/stalls.md. A limit that the code sets, such as the time after which something is
given up, is no measurement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tests.benchmarks import page, results
from tests.benchmarks.suite import load
from tests.docs.pages import FENCE, ROOT, text_of

NUMBER = r"\d(?:[\d,.]*\d)?"


@dataclass(frozen=True)
class Kept:
    """A value of a kept measurement; with `over`, how many times that of another row it is."""

    benchmark: str
    case: str
    row: str
    key: str
    over: str | None = None
    form: str | None = None
    """How it is written; as in its column on the page of benchmarks unless given."""

    def __str__(self) -> str:
        rows = results.read(results.KEPT, self.benchmark)[self.case]["rows"]
        value = rows[self.row][self.key]
        if self.over is not None:
            return format(value / rows[self.over][self.key], self.form or ".2f")
        forms = {column.key: column.form for column in load(self.benchmark).columns}
        return page.shown(value, self.form or forms[self.key])


@dataclass(frozen=True)
class Shuffled:
    """A value of docs/shuffle-quality.json, for shards of 512 samples."""

    loader: str
    key: str
    form: str

    def __str__(self) -> str:
        figures = json.loads(text_of("docs/shuffle-quality.json"))["figures"]
        (found,) = (one for one in figures if (one["loader"], one["shard_size"]) == (self.loader, 512))
        return format(found[self.key], self.form).removesuffix("%")


Sentence = tuple[str, Sequence[object]]
"""A sentence, or a row of a table, with `{}` for each figure; and the figures, which `str` writes."""


def rates(benchmark: str, case: str, ours: str, *theirs: str, key: str = "samples_per_s") -> list[Kept]:
    """How many times the rate of each of these ours is."""
    return [Kept(benchmark, case, ours, key, other) for other in theirs]


def speeds(*rows: str) -> list[Sentence]:
    """The table of README, whose words depend on the language."""
    bucket = partial(rates, "remote", "s3, 4 objects", key="mb_per_s")
    digits = partial(rates, "clip_training")
    figures = [
        rates("clip_loading", "640x480", "tarmac", "open_clip", "litdata", "dali"),
        rates("same_pixels", PIXELS, "tarmac, indexed", "webdataset", "mds", "tarmac, streaming"),
        digits("digits as JPEG of 256 x 256", "tarmac", "open_clip")
        + digits("digits as they are", "tarmac", "open_clip"),
        rates(
            "verify",
            "4 GB",
            "tarmac, default",
            "openssl sha256, all cores",
            "bare BLAKE3, mapped",
            key="mb_per_s",
        ),
        bucket("open", "obstore") + bucket("cached", "obstore_file"),
    ]
    return list(zip(rows, figures, strict=True))


def shuffled(row: str, loader: str) -> Sentence:
    forms = {"shards_per_batch": ".1f", "neighbour_distance": ".2f", "met_again": ".1%"}
    return f"| {row} | {{}} | {{}} | {{}} % |", [Shuffled(loader, key, form) for key, form in forms.items()]


def findings() -> Iterator[Sentence]:
    """The rows of docs/quality.md: what is found of planted faults, and of copies by what was done to them."""
    copies = "cleanvision {}; imagehash {} (8 bits); imagededup {}"
    tools = ("cleanvision", "imagehash, 8 bits", "imagededup, 10 bits")
    of_one = ("cleanvision {}", tools[:1])
    for kind, (words, (theirs, others)) in {
        "exact copies": ("exact copies", (copies, tools)),
        "near copies": ("near copies: 80 % of the size, JPEG quality 75", (copies, tools)),
        "one colour": ("one colour", of_one),
        "blurred": ("blurred by 1/32 of the shorter side", of_one),
        "enlarged": ("enlarged 8 times", of_one),
        "bars with a watermark": ("bars with a watermark", ("none", ())),
        "CMYK": ("CMYK", ("none", ())),
        "another colour profile": ("another colour profile", ("none", ())),
        "animations": ("animations", ("none", ())),
        "names of files": ("names of files as captions", ("none", ())),
        "boilerplate": ("boilerplate in captions", ("none", ())),
        "one caption for many": ("one caption for many", ("none", ())),
        "another language": ("captions in another language", ("none", ())),
        "long captions": ("long captions", ("none", ())),
    }.items():
        ours = [Kept("findings", PHOTOS, f"{kind}: tarmac", key) for key in ("precision", "recall", "f1")]
        peers = [Kept("findings", PHOTOS, f"{kind}: {tool}", "f1") for tool in others]
        yield f"| {words} | {{}} | {{}} | {{}} | {theirs} |", [*ours, *peers]
    changed = f"300 photographs among {PHOTOS.split()[0]}"
    contestants = ("tarmac", "imagehash, 4 bits", *tools[1:])
    *changes, wrong = results.read(results.KEPT, "copies")[changed]["rows"]
    for change in changes:
        of_each = [Kept("copies", changed, change, tool) for tool in contestants]
        yield f"| {change} | {{}} | {{}} | {{}} | {{}} |", of_each
    yield (
        "photographs {} are taken for copies here, and {}, {} and {} by these hashes",
        [Kept("copies", changed, wrong, tool, form=".0f") for tool in contestants],
    )


def main_job(place: str) -> Kept:
    return Kept("main_job", "digits, from raw files to an evaluated model", place, "s", form=".0f")


DEMO, AGAIN = main_job("temporary server, new"), main_job("temporary server, existing")
PHOTOS = "905 photographs"
PIXELS = "JPEGs of 400 x 300 to 640 x 480"
STATED: Mapping[str, Sequence[Sentence]] = {
    "README.md": [
        ("everything is installed that took {} s on two CPU cores", [DEMO]),
        *speeds(
            "| open_clip, litData, DALI | {}, {}, {} |",
            "| webdataset, MDS, the streaming reader | {}, {}, {} |",
            "| open_clip's trainer | {}, {} |",
            "| openssl sha256; a bare loop of BLAKE3 by memory maps | {}, {} |",
            "| obstore | {}, {} |",
        ),
    ],
    "README.zh-CN.md": [
        ("在两个 CPU 核上用时 {} s（五次的中位数）", [DEMO]),
        *speeds(
            "| open_clip、litData、DALI | {}、{}、{} |",
            "| webdataset、MDS、Tarmac 自己的流式读取 | {}、{}、{} |",
            "| open_clip 的训练代码 | {}、{} |",
            "| openssl sha256；通过内存映射计算 BLAKE3 的裸循环 | {}、{} |",
            "| obstore | {}、{} |",
        ),
    ],
    "docs/index.md": [("once everything is installed that took {} s on two CPU cores", [DEMO])],
    "docs/models/clip.md": [("Five such runs took {} s in the median on two cores", [AGAIN])],
    "docs/tour.md": [("five of them took {} s in the median", [AGAIN])],
    "docs/tracking.md": [
        (
            "| from a result's file to its row (median of 40) | {} s in TensorBoard's file, {} s in wandb's |",
            [Kept("gather", "40 results", "tarmac", key, form=".1f") for key in ("tensorboard_s", "wandb_s")],
        ),
    ],
    "docs/data/addresses.md": [
        (
            "{} times its images per second",
            [Kept("addresses", "all addresses answer", "tarmac", "images_per_s", "img2dataset", ".1f")],
        ),
    ],
    "docs/cluster.md": [
        (
            "The worker takes {} MB, and {} MB for each flow run",
            [
                Kept("operating", "the worker", "at rest", "mb"),
                Kept("operating", "a flow run with nothing to do", "build/digits-clip", "mb"),
            ],
        ),
    ],
    "docs/quality.md": [*findings()],
    "docs/preflight.md": [
        (
            "10,000 shards of 10,000 samples take {} s",
            [Kept("scale", "preflight", "100,000,000", "seconds", form=".1f")],
        ),
    ],
    "docs/loader.md": [
        (
            "10^9 samples in 10^5 shards the first batch comes after {} s, and the process grows by {} MB",
            [
                Kept("scale", "first batch, samples", "1,000,000,000", key, form=form)
                for key, form in (("seconds", ".2f"), ("grown_mb", ".0f"))
            ],
        ),
        shuffled("a perfect shuffle", "perfect shuffle"),
        shuffled("`shuffle: samples`", "tarmac, samples"),
        shuffled("`shuffle: windows`", "tarmac, windows"),
        shuffled("`reader: streaming`", "tarmac, streaming"),
        shuffled("webdataset, buffer of 1,000 and 4 workers", "webdataset"),
        shuffled("MosaicML streaming, py1s", "MosaicML py1s"),
        shuffled("MosaicML streaming, py1e", "MosaicML py1e"),
    ],
}
MEASURED = rf"{NUMBER}\s(?:times\b|x\b(?!\s*\d)|(?:samples|images|tokens|rows|MB|GB)/s|µs\b)"
"""What is a measured figure in all likelihood: how many times something is something else, a rate, a very short time."""
LIMITS = {
    "docs/evaluation.md": {"2,000 times"},
    "docs/quality.md": {"50 times"},
    "docs/stalls.md": {"1.5 times", "5 times"},
    "docs/symptoms.md": {"54 times"},
    "docs/tracking.md": {"50 times"},
}
"""What looks like one and is none: numbers that the code sets, or of how something was tried, or of an output shown."""


def pattern(sentence: str) -> re.Pattern[str]:
    """The sentence with any numbers and any breaks of lines."""
    words = (re.escape(word).replace(r"\{\}", f"({NUMBER})") for word in sentence.split())
    return re.compile(r"\s+".join(words))


def written(text: str, sentences: Sequence[Sentence], name: str) -> str:
    """The text with the figures that are kept now; ValueError for a sentence that is not in it once."""
    for sentence, figures in sentences:
        found = list(pattern(sentence).finditer(text))
        if len(found) != 1:
            raise ValueError(f"{name} has {len(found)} times: {sentence}")
        (one,) = found
        for number, figure in reversed([*enumerate(figures, 1)]):
            text = text[: one.start(number)] + str(figure) + text[one.end(number) :]
    return text


def unaccounted(text: str, sentences: Sequence[Sentence], measured: str = MEASURED) -> Iterator[str]:
    """The measured figures of the prose that no sentence accounts for."""
    text = FENCE.sub("", text)
    for sentence, _ in sentences:
        text = pattern(sentence).sub("", text)
    yield from (" ".join(found[0].split()) for found in re.finditer(measured, text))


if __name__ == "__main__":
    for name, sentences in STATED.items():
        (ROOT / name).write_text(written(text_of(name), sentences, name), encoding="utf-8")
