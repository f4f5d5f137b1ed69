"""Tars that other tools made are sound as they are; what is wrong with them is found all the same."""

import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli import main
from tasks.dataset.sources import open_sources
from tasks.dataset.verify.scan import ShardTask
from tasks.dataset.verify.shard import check_shard
from tasks.dataset.verify.verifier import verify
from tests.dataset import raw
from tests.dataset.raw import shards
from tests.dataset.raw.shards import END, entry, pax_record, tar_bytes

LEVELS = ("quick", "default", "full")
LONG = "a_photograph_of_" + "many_things_" * 12
"""Longer than a ustar header holds."""


def codes(path: Path | str, level: Any = "default") -> set[str]:
    return {finding.code for finding in verify(path, level).findings}


def members(first: int, count: int, prefix: str = "", names: str = "{:09d}") -> list[tuple[str, bytes]]:
    """As img2dataset names and writes them."""
    found = []
    for number in range(first, first + count):
        key = prefix + names.format(number)
        reported = json.dumps({"caption": f"picture {number}", "status": "success", "key": key}).encode()
        found += [
            (f"{key}.jpg", raw.png(number, kind="JPEG")),
            (f"{key}.json", reported),
            (f"{key}.txt", f"picture {number}".encode()),
        ]
    return found


def by_shard_writer(folder: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.ShardWriter(f"{folder}/%05d.tar", maxcount=4, verbose=0) as writer:
        for number in range(12):
            image = raw.png(number, kind="JPEG")
            writer.write(
                {"__key__": f"{number:09d}", "jpg": image, "txt": f"picture {number}", "json": {"a": 1}}
            )


def by_tar_writer(folder: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(folder / "all.tar")) as writer:
        for number in range(12):
            image = raw.png(number, kind="JPEG")
            writer.write({"__key__": f"sub/folder/{number}", "jpg": image, "cls": 3, "txt": "a picture"})


def by_tarfile(form: int, names: str = "{:09d}", prefix: str = "") -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for shard in range(3):
            data = tar_bytes(members(4 * shard, 4, prefix, names), form)
            (folder / f"{shard:05d}.tar").write_bytes(data)

    return make


def by_tar(*options: str) -> Callable[[Path], None]:
    """GNU tar of a folder of files, whose names begin with `./` and among which are the folders."""

    def make(folder: Path) -> None:
        files = folder.parent / "files"
        for name, content in members(0, 12, "sub/"):
            (files / name).parent.mkdir(parents=True, exist_ok=True)
            (files / name).write_bytes(content)
        subprocess.run(
            ["tar", "cf", folder / "all.tar", "--sort=name", *options, "-C", files, "."], check=True
        )

    return make


def with_global_header(folder: Path) -> None:
    """As `git archive` writes it: a comment for the whole tar before the first member."""
    stream = io.BytesIO()
    headers = {"comment": "0" * 40}
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT, pax_headers=headers) as archive:
        for name, content in members(0, 4):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 1700000000.123456  # type: ignore[assignment]
            archive.addfile(info, io.BytesIO(content))
    (folder / "all.tar").write_bytes(stream.getvalue())


MADE: dict[str, Callable[[Path], None]] = {
    "webdataset's ShardWriter": by_shard_writer,
    "webdataset's TarWriter": by_tar_writer,
    "tarfile, pax": by_tarfile(tarfile.PAX_FORMAT),
    "tarfile, pax, long names": by_tarfile(tarfile.PAX_FORMAT, LONG + "{:09d}"),
    "tarfile, pax, names that are not ASCII": by_tarfile(tarfile.PAX_FORMAT, "größe_猫_{:09d}"),
    "tarfile, GNU": by_tarfile(tarfile.GNU_FORMAT),
    "tarfile, GNU, long names": by_tarfile(tarfile.GNU_FORMAT, LONG + "{:09d}"),
    "tarfile, ustar, names in two parts": by_tarfile(tarfile.USTAR_FORMAT, "{:09d}", "folder/" * 15),
    "tarfile, a global header": with_global_header,
    "tar": by_tar(),
    "tar, pax": by_tar("--format=posix"),
    "tar, ustar": by_tar("--format=ustar"),
    "tar, v7": by_tar("--format=v7"),
    "tar, records of one block": by_tar("-b", "1"),
}


@pytest.mark.parametrize("tool", MADE)
def test_tars_of_other_tools_are_sound(tool: str, tmp_path: Path) -> None:
    (tmp_path / "tars").mkdir()
    MADE[tool](tmp_path / "tars")
    first = min((tmp_path / "tars").glob("*.tar"))
    for level in LEVELS:
        for path in (tmp_path / "tars", first, f"{tmp_path}/tars/*.tar"):
            assert verify(path, level).findings == [], (level, path)  # type: ignore[arg-type]


def in_folder(folder: Path, count: int = 4) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(count):
        (folder / f"{shard:05d}.tar").write_bytes(tar_bytes(members(5 * shard, 5)))
    return folder


def test_a_hole_in_the_numbers_is_a_missing_shard(tmp_path: Path) -> None:
    folder = in_folder(tmp_path / "tars")
    (folder / "00001.tar").unlink()
    for level in LEVELS:
        (finding,) = verify(folder, level).findings  # type: ignore[arg-type]
        assert finding.code == "shard.missing" and Path(finding.where["shard"]).name == "00001.tar"
    assert codes(f"{folder}/{{00000,00002,00003}}.tar") == set(), "a pattern promises only the names in it"


def lacking(suffix: str, every: int, count: int = 100) -> Iterable[tuple[str, bytes]]:
    """Every so many samples lack a member."""
    for name, content in members(0, count):
        key, _, of = name.partition(".")
        if of != suffix or int(key) % every:
            yield name, content


@pytest.mark.parametrize(
    ("suffix", "every", "expected"),
    [
        ("txt", 20, {"sample.missing_member"}),
        ("txt", 100, {"sample.missing_member"}),
        ("json", 5, set()),
        ("txt", 2, set()),
        ("jpg", 20, {"sample.missing_member"}),
    ],
)
def test_what_nine_of_ten_samples_have_is_required(
    suffix: str, every: int, expected: set[str], tmp_path: Path
) -> None:
    (tmp_path / "all.tar").write_bytes(tar_bytes(lacking(suffix, every)))
    assert codes(tmp_path / "all.tar") == expected


def test_images_of_several_kinds_count_as_one(tmp_path: Path) -> None:
    found = []
    for name, content in members(0, 60):
        key, _, of = name.partition(".")
        if of == "jpg" and int(key) % 3:
            kind = ("png", "webp")[int(key) % 3 - 1]
            name, content = f"{key}.{kind}", raw.png(int(key), kind=kind.upper())
        found.append((name, content))
    (tmp_path / "all.tar").write_bytes(tar_bytes(found))
    assert codes(tmp_path / "all.tar", "full") == set()


def test_sizes_beside_the_tars_are_compared(tmp_path: Path) -> None:
    folder = in_folder(tmp_path / "tars")
    sizes = {f"{shard:05d}.tar": 5 for shard in range(4)}
    for change, expected in (
        ({}, set()),
        ({"00002.tar": 6}, {"shard.count"}),
        ({"00004.tar": 5}, {"shard.missing"}),
        ({"00003.tar": None}, {"shard.extra"}),
    ):
        found = {name: size for name, size in {**sizes, **change}.items() if size is not None}
        (folder / "sizes.json").write_text(json.dumps(found))
        assert codes(folder) == expected, change


@pytest.mark.parametrize("level", LEVELS)
def test_the_loss_of_a_cut_tar_is_counted_by_the_files_beside_it(tmp_path: Path, level: Any) -> None:
    whole = tar_bytes(members(0, 240))
    tar = tmp_path / "00000.tar"
    tar.write_bytes(whole[: len(whole) * 2 // 3])
    (cut,) = [one for one in verify(tar, level).findings if one.code == "shard.truncated"]
    assert cut.evidence["lost_samples"] == "unknown" and "how many" in cut.evidence["why"]
    statuses = ["success"] * 240 + ["failed_to_download"] * 60
    pq.write_table(pa.table({"status": statuses}), tmp_path / "00000.parquet")
    for by in ("00000.parquet", "00000_stats.json", "sizes.json"):
        (cut,) = [one for one in verify(tar, level).findings if one.code == "shard.truncated"]
        assert (cut.evidence["written_samples"], cut.evidence["by"]) == (240, by)
        if level != "quick":
            assert cut.evidence["lost_samples"] == 240 - cut.evidence["whole_samples"] > 75
        if by == "00000.parquet":
            (tmp_path / "00000_stats.json").write_text(json.dumps({"count": 300, "successes": 240}))
        else:
            (tmp_path / "sizes.json").write_text(json.dumps({"00000.tar": 240}))


def pax(key: str, value: str, kind: bytes) -> bytes:
    return entry("pax", pax_record(key, value), type=kind)


ODD_TARS = {
    "a global path": pax("path", "a.jpg", b"g") + entry("x.jpg", raw.png(1, kind="JPEG")),
    "a global size": pax("size", "3", b"g") + entry("a.jpg", b"abc"),
    "a long name": entry("n" * 120 + ".jpg", raw.png(1, kind="JPEG")),
    "a sparse file": pax("GNU.sparse.name", "a.jpg", b"x") + entry("GNUSparseFile.1/x", b"abc"),
    "a link": entry("a.jpg", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
}


@pytest.mark.parametrize("name", ODD_TARS)
def test_verify_and_the_source_of_tars_read_alike(name: str, tmp_path: Path) -> None:
    """A build of tars takes the samples that verify has called sound, by the same keys."""
    around = [b"".join(entry(*one) for one in members(first, 3)) for first in (10, 20)]
    (tmp_path / "a.tar").write_bytes(around[0] + ODD_TARS[name] + around[1] + END)
    seen = check_shard(ShardTask(str(tmp_path), "a.tar"))
    (source,) = open_sources(shards.config(tmp_path / "a.tar").dataset)
    items = [item for container in source.containers() for item in source.items(container)]
    assert {item.original_key for item in items} == set(seen.keys)
    unsafe = {one.where["key"] for one in seen.faults if one.code == "member.unsafe"}
    assert {item.original_key for item in items if item.fault and item.fault[0] == "archive.unsafe"} == unsafe


def test_the_command_ends_with_what_it_found(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = in_folder(tmp_path / "foreign")
    broken = in_folder(tmp_path / "broken")
    (broken / "00002.tar").write_bytes((broken / "00002.tar").read_bytes()[:3000])
    for path, code in ((sound, 0), (foreign, 0), (f"{foreign}/{{00000..00003}}.tar", 0), (broken, 1)):
        for options in ([], ["--quick"], ["--full"]):
            assert main(["verify", str(path), *options]) == code, (path, options)
            assert main(["verify", str(path), "--json", *options]) == code
            printed = json.loads(capsys.readouterr().out.splitlines()[-1])
            assert printed["ok"] is (code == 0)
            assert bool(printed["findings"]) is (code == 1)


@pytest.mark.parametrize("options", [[], ["--full"], ["--json"]])
def test_names_of_any_bytes_can_be_printed(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes that are no UTF-8, a terminal's escapes, a line's end: in a name that a finding has to show."""
    strange = "caf\udce9 \x1b[31m\n</script>{:03d}"
    found = [member for member in members(0, 40, names=strange) if not member[0].endswith("007.txt")]
    (tmp_path / "all.tar").write_bytes(tar_bytes(found, tarfile.GNU_FORMAT))
    assert main(["verify", str(tmp_path / "all.tar"), *options]) == 1
    printed = capsys.readouterr().out
    assert "sample.missing_member" in printed and "007" in printed
    assert "\x1b[31m" not in printed
    printed.encode()
