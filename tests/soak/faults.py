"""What readers make of the same damaged shards: `python -m tests.soak.faults [READER…]` asks them anew.

Every cell is a process of its own, forked from one that has imported its reader. It reads each sample of a dataset of
100 once, decodes its picture, and prints captions. What it lost, delivered wrongly, or said is compared with the sound
dataset; nothing is taken from what a reader claims. Readers are used as their own documentation shows. The answers go
to faults.json, of which `python -m tests.soak.matrices` makes docs/matrices/faults.md.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tasks.dataset.tar.format import header
from tests.benchmarks.results import commit, machine, versions
from tests.conftest import ROOT
from tests.soak import many_shards

RESULTS = Path(__file__).with_name("faults.json")
SHARDS, PER_SHARD, BATCH = 4, 25, 5
SHARD = "train/000001.tar"
"""The one that is damaged; all of its samples but the fifth and those behind it are whole in most faults."""
KEY = f"{PER_SHARD + 4:012d}"
LIMIT_S = 120
PACKAGES = ("webdataset", "open_clip_torch", "datasets", "torch")


def _offset(tar: bytes, name: str) -> int:
    return tar.index(name.encode() + b"\0")


def _change(version: Path, change: Callable[[bytearray], object]) -> None:
    data = bytearray((version / SHARD).read_bytes())
    change(data)
    (version / SHARD).write_bytes(data)


def cut_in_a_picture(version: Path) -> None:
    _change(version, lambda tar: tar.__delitem__(slice(_offset(tar, f"{KEY}.png") + 540, None)))


def cut_between_samples(version: Path) -> None:
    _change(version, lambda tar: tar.__delitem__(slice(_offset(tar, f"{KEY}.png"), None)))


def emptied(version: Path) -> None:
    (version / SHARD).write_bytes(b"")


def gone(version: Path) -> None:
    (version / SHARD).unlink()


def another_in_its_place(version: Path) -> None:
    (version / SHARD).write_bytes((version / "train/000000.tar").read_bytes())


def zeros_for_a_header(version: Path) -> None:
    def change(tar: bytearray) -> None:
        start = _offset(tar, f"{KEY}.png")
        tar[start : start + 512] = bytes(512)

    _change(version, change)


def a_bit_of_a_caption(version: Path) -> None:
    def change(tar: bytearray) -> None:
        tar[tar.index(f"picture {KEY}".encode())] ^= 1

    _change(version, change)


def a_bit_of_a_picture(version: Path) -> None:
    def change(tar: bytearray) -> None:
        tar[_offset(tar, f"{KEY}.png") + 512 + 45] ^= 1

    _change(version, change)


def zeros_for_a_picture(version: Path) -> None:
    def change(tar: bytearray) -> None:
        start = _offset(tar, f"{KEY}.png") + 512
        tar[start : start + len(many_shards.IMAGE)] = bytes(len(many_shards.IMAGE))

    _change(version, change)


def a_caption_by_another_name(version: Path) -> None:
    def change(tar: bytearray) -> None:
        start = _offset(tar, f"{KEY}.txt")
        tar[start : start + 512] = header(f"{KEY}.caption", len(f"picture {KEY}"))

    _change(version, change)


FAULTS: dict[str, Callable[[Path], None]] = {
    "nothing": lambda version: None,
    "cut in a picture": cut_in_a_picture,
    "cut between two samples": cut_between_samples,
    "emptied to 0 bytes": emptied,
    "removed": gone,
    "another shard's bytes in its place": another_in_its_place,
    "zeros in place of a member's header": zeros_for_a_header,
    "a flipped bit in a caption": a_bit_of_a_caption,
    "a flipped bit in a picture": a_bit_of_a_picture,
    "zeros in place of a picture": zeros_for_a_picture,
    "a caption under another member name": a_caption_by_another_name,
}


def as_caption(caption: str, picture: Any) -> str:
    """What is compared: the caption, and the sum of the decoded pixels."""
    return f"{caption} {int(np.asarray(picture.convert('RGB'), np.int64).sum())}"


def by_tarmac(version: Path, reader: str) -> Iterator[str]:
    from tests.loader import transforms
    from tests.loader.feeds import feed_of

    feed = feed_of(version, transforms.shown, batch_size=BATCH, reader=reader)
    with feed.train(feed.state()) as batches:
        for _ in range(SHARDS * PER_SHARD // BATCH):
            yield from next(batches)["shown"]


def by_webdataset(version: Path, *, is_warned: bool) -> Iterator[str]:
    import webdataset

    handler = webdataset.warn_and_continue if is_warned else webdataset.reraise_exception
    stream = webdataset.WebDataset(tars(version), shardshuffle=False, handler=handler)
    for picture, caption in stream.decode("pil", handler=handler).to_tuple("png", "txt", handler=handler):
        yield as_caption(caption, picture)


def by_open_clip(version: Path) -> Iterator[str]:
    """The pipeline of its trainer, for one epoch as its trainer counts it."""
    import logging
    from argparse import Namespace

    from open_clip_train.data import get_wds_dataset

    logging.basicConfig(level=logging.INFO)
    arguments = Namespace(
        train_data=tars(version), train_num_samples=SHARDS * PER_SHARD, train_data_upsampling_factors=None,
        dataset_resampled=False, seed=0, batch_size=BATCH, workers=1, world_size=1,
    )  # fmt: skip
    info = get_wds_dataset(arguments, _pixels, is_train=True, tokenizer=lambda caption: [caption])
    for pictures, captions in info.dataloader:
        yield from (f"{caption} {int(picture)}" for caption, picture in zip(captions, pictures, strict=True))


def _pixels(picture: Any) -> int:
    return int(np.asarray(picture.convert("RGB"), np.int64).sum())


def by_datasets(version: Path) -> Iterator[str]:
    from datasets import load_dataset

    files = {"train": sorted(map(str, (version / "train").glob("*.tar")))}
    for sample in load_dataset("webdataset", data_files=files, split="train", streaming=True):
        yield as_caption(sample["txt"], sample["png"])


def tars(version: Path) -> str:
    return f"{version}/train/{{000000..{SHARDS - 1:06d}}}.tar"


class FaultReader(NamedTuple):
    """How a reader gives what `as_caption` makes of every sample, and the modules that it needs."""

    read: Callable[[Path], Iterable[str]]
    modules: Sequence[str]


OWN = ("tests.loader.transforms", "tests.loader.feeds")
READERS = {
    "tarmac, indexed": FaultReader(lambda version: by_tarmac(version, "indexed"), OWN),
    "tarmac, streaming": FaultReader(lambda version: by_tarmac(version, "streaming"), OWN),
    "webdataset": FaultReader(lambda version: by_webdataset(version, is_warned=False), ("webdataset",)),
    "webdataset, warn_and_continue": FaultReader(
        lambda version: by_webdataset(version, is_warned=True), ("webdataset",)
    ),
    "open_clip's pipeline": FaultReader(by_open_clip, ("open_clip_train.data",)),
    "datasets, streaming": FaultReader(by_datasets, ("datasets",)),
}
CHECKERS = ("tarmac verify", "tarmac verify --quick", "tar --list")
"""What looks at the files without training on them."""


@dataclass(frozen=True)
class FaultAnswer:
    """What became of one fault at one reader. `named` is "sample", "shard" or "" by what its output holds."""

    fault: str
    reader: str
    is_stopped: bool
    named: str
    lost: int = 0
    wrong: int = 0
    twice: int = 0

    @property
    def verdict(self) -> str:
        """`named` or `stopped` where training does not go on with the damage, else `told` or `silent`."""
        if self.is_stopped:
            return "named" if self.named else "stopped"
        is_harmed = self.lost or self.wrong or self.twice
        return ("told" if self.named else "silent") if is_harmed else "whole"


def ask(reader: str, folder: Path) -> Iterator[FaultAnswer]:
    """Damage a dataset by each fault, and read it."""
    whole = many_shards.make(folder / "whole", SHARDS, PER_SHARD)
    for number, (fault, damage) in enumerate(FAULTS.items()):
        damage(Path(shutil.copytree(whole, folder / str(number), symlinks=True)))
        if reader in CHECKERS:
            done = _checked(folder / str(number), reader)
            yield FaultAnswer(fault, reader, done.returncode != 0, _named(done.stdout + done.stderr))
    if reader in READERS:
        words = [sys.executable, "-m", "tests.soak.faults", "--read", reader, str(folder)]
        subprocess.run(words, cwd=ROOT, check=True, timeout=LIMIT_S * len(FAULTS))
        for number, fault in enumerate(FAULTS):
            yield _judged(fault, reader, folder / str(number))


def read_all(reader: str, folder: Path) -> None:
    """Read each damaged dataset in a fork of this process; what it prints, and its exit code, go to files beside it."""
    for module in READERS[reader].modules:
        importlib.import_module(module)
    for number, _ in enumerate(FAULTS):
        process = multiprocessing.get_context("fork").Process(
            target=read, args=(reader, folder / str(number))
        )
        process.start()
        process.join(LIMIT_S)
        if process.exitcode is None:
            process.kill()
            raise SystemExit(f"{reader} hangs on fault {number}")
        (folder / f"{number}.code").write_text(str(process.exitcode))


def read(reader: str, version: Path) -> None:
    for stream, suffix in ((sys.stdout, ".out"), (sys.stderr, ".err")):
        with version.with_suffix(suffix).open("w") as file:
            os.dup2(file.fileno(), stream.fileno())
    for caption in READERS[reader].read(version):
        print("=", caption, flush=True)


def _judged(fault: str, reader: str, version: Path) -> FaultAnswer:
    said = version.with_suffix(".err").read_text()
    if version.with_suffix(".code").read_text() != "0":
        return FaultAnswer(fault, reader, True, _named(said))
    lines = version.with_suffix(".out").read_text().splitlines()
    came, sound = Counter(line[2:] for line in lines if line.startswith("= ")), Counter(_expected())
    wrong = [one for one in came if one not in sound]
    twice = sum(count - 1 for one, count in came.items() if one in sound)
    return FaultAnswer(fault, reader, False, _named(said), len(sound - came), len(wrong), twice)


def _expected() -> Iterator[str]:
    from io import BytesIO

    from PIL import Image

    picture = Image.open(BytesIO(many_shards.IMAGE))
    for number in range(SHARDS * PER_SHARD):
        yield as_caption(f"picture {number:012d}", picture)


def _checked(version: Path, checker: str) -> subprocess.CompletedProcess[str]:
    if checker == "tar --list":
        one_by_one = 'for tar in "$1"/train/*.tar; do tar --list --file "$tar" >/dev/null || code=1; done; exit ${code:-0}'
        words = ["bash", "-c", one_by_one, "bash", str(version)]
    else:
        command, *options = checker.split()
        words = [str(Path(sys.executable).with_name(command)), *options, str(version), "--json"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)


def _named(said: str) -> str:
    """Whether the output names the sample, or its shard, as a person would look for it."""
    return "sample" if KEY in said else "shard" if Path(SHARD).name in said else ""


def main(*words: str) -> None:
    if words[:1] == ("--read",):
        read_all(words[1], Path(words[2]))
        return
    kept = json.loads(RESULTS.read_text())["answers"] if words else []
    for reader in words or (*READERS, *CHECKERS):
        kept = [one for one in kept if one["reader"] != reader]
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            for answer in ask(reader, Path(folder)):
                print(f"{answer.fault:36} {answer.reader:30} {answer.verdict}", flush=True)
                kept.append(asdict(answer))
    about = {
        "date": date.today().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(PACKAGES),
    }
    text = ",\n".join(map(json.dumps, kept))
    RESULTS.write_text('{"about": ' + json.dumps(about) + ',\n"answers": [\n' + text + "\n]}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
