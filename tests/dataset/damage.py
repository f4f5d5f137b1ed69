"""Built datasets for the tests of repair, ways to damage them, and a check that they are whole again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.schema import Config, ShardRules, Splits
from tasks.dataset.building.builder import build
from tasks.dataset.repair.run import Repaired, repair
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version import versions
from tasks.dataset.version.layout import FRESH, VERIFIED
from tests.dataset import raw

Damage = Callable[[Path], object]


def flip(path: Path, at: int | None = None) -> None:
    """Turn a bit of the byte at an offset, by default in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 0x40
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def without_end(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1024)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(10240))


def garble(path: Path) -> None:
    path.write_bytes(b"<html>404 Not Found</html>\n" * 999)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_to_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def swap(one: Path, other: Path) -> None:
    kept = one.with_name("kept")
    one.rename(kept)
    other.rename(one)
    kept.rename(other)


DAMAGES: Mapping[str, Damage] = {
    "flipped": flip,
    "cut": cut,
    "gone": Path.unlink,
    "without end": without_end,
    "emptied": empty,
    "lengthened": lengthen,
    "garbled": garble,
    "a folder": folder,
    "a link": link_to_nowhere,
}


@dataclass(frozen=True)
class Built:
    """A published version, and what it was like."""

    config: Config
    version: Path
    whole: Mapping[str, str]
    states: Mapping[Path, tuple[int, int]]

    @property
    def dataset(self) -> Path:
        return self.config.dataset.output

    @property
    def tars(self) -> list[Path]:
        return sorted(self.states)

    def tar(self, number: int) -> Path:
        return self.tars[number]

    def repair(self, **options: Any) -> Repaired:
        return repair(self.dataset, **options)

    def another(self) -> Path:
        """A second version, of another picture; the source is then as it was again."""
        picture = Path(self.config.dataset.all_sources[0].path).with_name("0007.png")
        data, times = picture.read_bytes(), picture.stat()
        picture.write_bytes(raw.png(7007))
        other = publish(self.config).version
        picture.write_bytes(data)
        os.utime(picture, ns=(times.st_atime_ns, times.st_mtime_ns))
        return other

    def check(self, damaged: Iterable[Path] = (), left: Iterable[str] = ("current", "versions")) -> None:
        """The version is as it was built, in place; tars that were not damaged have not been touched."""
        assert raw.contents(self.version, without=("build.json",)) == self.whole
        assert verify(self.version, "full").findings == []
        sound = self.states.keys() - set(damaged)
        assert {path: _state(path) for path in sound} == {path: self.states[path] for path in sound}
        names = {path.name for path in self.dataset.iterdir() if not path.name.startswith(".")}
        names -= {VERIFIED, FRESH}  # notes on when it was verified, and up to date
        assert sorted(names) == sorted(left)


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def publish(config: Config) -> Built:
    result = build(config)
    versions.publish(config.dataset.output, result.version, config.dataset.keep)
    return observe(config, result.version)


def observe(config: Config, version: Path) -> Built:
    tars = {path: _state(path) for path in version.glob("*/*.tar")}
    return Built(config, version, raw.contents(version, without=("build.json",)), tars)


def pictures(root: Path, count: int = 40, **dataset: Any) -> Built:
    """Images in files with a table of captions, four to a shard."""
    raw.pictures(root / "raw", count)
    return publish(raw.config(root / "raw", root / "out", **{"shard": {"samples": 4}, **dataset}))


def small(config: Config, samples: int = 1) -> Config:
    """The config with so many samples to a shard, all in one split."""
    changes = {"shard": ShardRules(samples=samples), "splits": Splits()}
    return config.model_copy(update={"dataset": config.dataset.model_copy(update=changes)})
