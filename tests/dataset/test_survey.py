"""`tarmac init`: what it sees in raw data of every kind, and that what it writes builds."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows import cli
from tasks.core.config import load
from tasks.core.errors import UsageError
from tasks.core.schema import Config
from tasks.dataset.build.run import build
from tasks.dataset.formats.volumes import stored
from tasks.dataset.init import Survey, config_text, inventory, patients, survey
from tasks.dataset.init.text import flow
from tasks.loader.indexed import IndexedReader
from tests import s3
from tests.dataset import raw
from tests.dataset.raw import chat, png

LUNGS = '"The lungs are clear, no nodule is seen."'


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pngs(folder: Path, count: int = 6, prefix: str = "") -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{prefix}{number}.png" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(png(number))
    return paths


def scan(seed: int) -> np.ndarray[Any, Any]:
    """A body in air, as HU in (D, H, W)."""
    random = np.random.default_rng(seed)
    voxels = random.normal(40, 60, (6, 16, 16))
    voxels[:, :4] = random.normal(-1000, 5, (6, 4, 16))
    return np.rint(voxels).astype(np.int16)


def table(folder: Path) -> None:
    raw.pictures(folder, 6)


def parquet(folder: Path) -> None:
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    folder.mkdir(parents=True)
    for part in ("train", "test"):
        images = pa.array([{"bytes": png(n), "path": f"{part}{n}.png"} for n in range(3)], image)
        columns = {"image": images, "text": [f"thing {n} of {part}" for n in range(3)]}
        pq.write_table(pa.table(columns), folder / f"{part}-00000-of-00001.parquet")


def captions_beside(folder: Path) -> None:
    for path in pngs(folder):
        path.with_suffix(".txt").write_text(f"a picture called {path.stem}")


def json_beside(folder: Path) -> None:
    for path in pngs(folder):
        described = {"url": "https://x/y z", "title": f"a picture called {path.stem}", "id": path.stem}
        path.with_suffix(".json").write_text(json.dumps(described))


def classes(folder: Path) -> None:
    for name in ("nine", "zero"):
        pngs(folder / name, 3)


def npz(folder: Path) -> None:
    folder.mkdir(parents=True)
    names = [f"p{number // 2}_scan_{number % 2}" for number in range(6)]
    for number, name in enumerate(names):
        np.savez_compressed(folder / f"{name}.npz", scan(number).astype(np.float32) / 1000)
    (folder / "reports.csv").write_text("VolumeName,Findings\n" + "".join(f"{n},{LUNGS}\n" for n in names))


def nifti(folder: Path, count: int = 6) -> None:
    """CT-RATE's layout; the last volume has no report."""
    rows = []
    for number in range(count):
        patient = f"train_{number // 2}"
        place = folder / "train" / patient / f"{patient}_a"
        place.mkdir(parents=True, exist_ok=True)
        rows.append(f"{patient}_a_{number % 2 + 1}.nii.gz")
        affine = np.diag([-0.75, -0.75, 1.5, 1])
        nibabel.save(nibabel.Nifti1Image(scan(number).transpose(1, 2, 0), affine), place / rows[-1])
    text = "VolumeName,Findings_EN,Impressions_EN\n" + "".join(f"{n},{LUNGS},Healthy.\n" for n in rows)
    (folder / "reports.csv").write_text(text)
    (folder / "labels.csv").write_text("VolumeName,nodule,effusion\n" + "".join(f"{n},0,1\n" for n in rows))
    metadata = "VolumeName,RescaleSlope,RescaleIntercept,XYSpacing,ZSpacing\n"
    (folder / "metadata.csv").write_text(
        metadata + "".join(f'{n},1,-1024,"[0.75, 0.75]",1.5\n' for n in rows)
    )


def conversations(folder: Path) -> None:
    chat.make(folder)


def tar(path: Path, samples: Mapping[str, Mapping[str, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for key, members in samples.items():
            for suffix, content in members.items():
                member = tarfile.TarInfo(f"{key}.{suffix}")
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))


def tars(folder: Path, make: Callable[[int], Mapping[str, bytes]], count: int = 3) -> None:
    for shard in range(2):
        numbers = range(shard * count, (shard + 1) * count)
        tar(folder / f"{shard:05d}.tar", {f"{number:09d}": make(number) for number in numbers})


def webdataset(folder: Path) -> None:
    tars(folder, lambda number: {"png": png(number), "txt": b"a thing", "cls": b"1"})


def volumes_in_tars(folder: Path) -> None:
    """As a build writes them."""

    def members(number: int) -> dict[str, bytes]:
        name, content = stored.encode(np.rint(scan(number)).astype(np.int16), "blosc2")
        return {name: bytes(content), "txt": b"The lungs are clear.", "json": b"{}"}

    tars(folder, members)


def img2dataset(folder: Path) -> None:
    described = json.dumps({"caption": "a thing", "uid": "u"}).encode()
    tars(folder, lambda number: {"jpg": png(number, kind="JPEG"), "json": described})
    for shard in range(2):
        keys = [f"{shard * 3 + n:09d}" for n in range(4)]
        columns = {"key": keys, "url": ["https://x/a.jpg"] * 4, "caption": ["a thing"] * 4}
        pq.write_table(pa.table(columns), folder / f"{shard:05d}.parquet")


def reinforcement(_: int) -> dict[str, bytes]:
    arrays = io.BytesIO()
    np.savez(arrays, image_emb=np.zeros((1, 8), np.float32), text_emb=np.zeros((3, 8), np.float32))
    crops = {"param_aug": [[[0, 0, 6, 6], [[1, 2], [3, 4]]]]}
    return {
        "syn.json": json.dumps({"syn_text": ["a", "b"]}).encode(),
        "paug.json": json.dumps(crops).encode(),
        "npz": arrays.getvalue(),
    }


def reinforced(folder: Path) -> None:
    """As published: the images in tars of their own."""
    tars(folder / "images", lambda number: {"jpg": png(number, kind="JPEG"), "txt": b"a thing"})
    tars(folder / "reinforcement", reinforcement)


KINDS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "table": (table, "table", "image_text"),
    "parquet": (parquet, "table", "image_text"),
    "captions beside": (captions_beside, "image_folder", "image_text"),
    "json beside": (json_beside, "image_folder", "image_text"),
    "Klassen (groß)": (classes, "image_folder", "image_text"),
    "npz": (npz, "npz", "volume_report"),
    "nifti": (nifti, "nifti", "volume_report"),
    "chat": (conversations, "chat", "chat"),
    "webdataset": (webdataset, "shards", "image_text"),
    "volumes in tars": (volumes_in_tars, "shards", "volume_report"),
    "img2dataset": (img2dataset, "shards", "image_text"),
    "reinforced": (reinforced, "shards", "reinforced"),
}


def config_of(seen: Survey, tmp_path: Path) -> Config:
    path = tmp_path / "written.yaml"
    path.write_text(config_text(seen), encoding="utf-8")
    return load(path)


@pytest.mark.parametrize("name", KINDS)
def test_what_it_writes_builds(name: str, tmp_path: Path) -> None:
    make, kind, modality = KINDS[name]
    make(tmp_path / "raw" / name)
    seen = survey(f"raw/{name}")
    assert (seen.best.kind, seen.best.modality, seen.best.samples) == (kind, modality, 6)
    config = config_of(seen, tmp_path)
    assert not str(config.dataset.all_sources[0].path).startswith("/")
    built = build(config)
    assert (built.accepted, built.read) == (6, 6)


@pytest.mark.parametrize("name", ["captions beside", "npz", "img2dataset"])
@pytest.mark.parametrize("place", ["photos", "data"])
def test_what_it_writes_lies_apart_from_the_raw_data(
    name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    KINDS[name][0](tmp_path / place)
    if place == "photos":
        monkeypatch.chdir(tmp_path / place)
    config = config_of(survey("." if place == "photos" else place), tmp_path)
    assert build(config).accepted == 6
    assert config.dataset.output.resolve() == tmp_path / f"{place}-tarmac"


@pytest.mark.parametrize("name", KINDS)
def test_it_says_the_same_each_time(name: str, tmp_path: Path) -> None:
    KINDS[name][0](tmp_path / "raw")
    assert config_text(survey("raw")) == config_text(survey(str(tmp_path / "raw") + "/"))


def evidence(seen: Survey) -> dict[str, str]:
    return dict(seen.best.seen)


def warnings(seen: Survey) -> str:
    return "\n".join(seen.best.warnings)


class TestTables:
    def test_columns_are_told_by_what_they_hold(self, tmp_path: Path) -> None:
        pngs(tmp_path / "raw" / "some images", 6, "ä ")
        header = ("number", "where", "split", "words", "patient_id")
        rows = [
            (n, f"some images/ä {n}.png", ("train", "val")[n > 3], f"a picture of number {n}", f"p{n // 2}")
            for n in range(6)
        ]
        raw.write_table(tmp_path / "raw", rows, header)
        seen = survey("raw")
        config = config_of(seen, tmp_path).dataset
        assert (config.source.image, config.source.caption) == ("where", "words")  # type: ignore[union-attr]
        assert config.splits.column == "split"
        assert "group_by: patient_id" in config_text(seen)
        assert "6 of 6 looked at are there" in evidence(seen)["image"]
        assert build(config_of(seen, tmp_path)).accepted == 6

    def test_images_that_lie_elsewhere_are_found(self, tmp_path: Path) -> None:
        pngs(tmp_path / "raw" / "pictures")
        raw.write_table(tmp_path / "raw", [(f"{n}.png", f"picture number {n}", "") for n in range(6)])
        seen = survey("raw/captions.csv")
        assert "0 of 6 looked at are there" in evidence(seen)["image"]
        seen = survey("raw")
        assert "which lies in pictures/" in warnings(seen)

    def test_a_table_goes_before_captions_beside_and_both_are_named(self, tmp_path: Path) -> None:
        raw.pictures(tmp_path / "raw", 6)
        for path in (tmp_path / "raw").glob("*.png"):
            path.with_suffix(".txt").write_text("another caption")
        seen = survey("raw")
        assert [reading.kind for reading in seen.readings] == ["table", "image_folder"]
        assert "captions in .txt" in config_text(seen)

    def test_captions_for_more_images_go_before_a_table_of_few(self, tmp_path: Path) -> None:
        captions_beside(tmp_path / "raw")
        raw.write_table(tmp_path / "raw", [("0.png", "picture number 0", "")])
        assert survey("raw").best.kind == "image_folder"

    def test_a_column_of_classes_becomes_a_zero_shot_task(self, tmp_path: Path) -> None:
        raw.pictures(tmp_path / "raw", 60)
        config = config_of(survey("raw"), tmp_path)
        assert config.evaluate is not None and config.evaluate.tasks[0].kind == "zero_shot"

    def test_captions_alone_become_a_retrieval_task(self, tmp_path: Path) -> None:
        raw.pictures(tmp_path / "raw", 60)
        rows = [(f"{number:04d}.png", f"picture {number}", "") for number in range(60)]
        raw.write_table(tmp_path / "raw", rows)
        config = config_of(survey("raw"), tmp_path)
        assert config.evaluate is not None and config.evaluate.tasks[0].kind == "retrieval"

    def test_images_with_several_captions_stay_in_one_split(self, tmp_path: Path) -> None:
        raw.pictures(tmp_path / "raw", 20)
        rows = [(f"{n:04d}.png", f"picture {n}, caption {m}", "") for n in range(20) for m in range(5)]
        raw.write_table(tmp_path / "raw", rows)
        config = config_of(survey("raw"), tmp_path)
        result = build(config)
        assert (result.accepted, result.rejected) == (100, 0)
        images: dict[str, set[bytes]] = {"train": set(), "val": set()}
        for split, seen in images.items():
            reader = IndexedReader(result.version, split)
            seen |= {reader.read(number).members["png"] for number in range(len(reader))}
        assert images["val"] and not images["train"] & images["val"]

    def test_numbers_of_classes_are_no_names(self, tmp_path: Path) -> None:
        raw.pictures(tmp_path / "raw", 60)
        rows = [(f"{n:04d}.png", f"picture {n}", n % 3) for n in range(60)]
        raw.write_table(tmp_path / "raw", rows)
        config = config_of(survey("raw"), tmp_path)
        assert config.evaluate is not None and config.evaluate.tasks[0].kind == "retrieval"

    def test_few_samples_are_not_judged_on(self, tmp_path: Path) -> None:
        """The share that is held out may be empty, and a training would end in an evaluation that fails."""
        captions_beside(tmp_path / "raw")
        seen = survey("raw")
        assert config_of(seen, tmp_path).evaluate is None and "# evaluate:" in config_text(seen)

    def test_a_broken_table_is_told_and_left_out(self, tmp_path: Path) -> None:
        raw.pictures(tmp_path / "raw", 6)
        (tmp_path / "raw" / "torn.csv").write_text('file,caption\n"0.png,x\n')
        seen = survey("raw")
        assert seen.best.samples == 6
        assert "torn.csv is left out: torn.csv:2" in warnings(seen)

    @pytest.mark.parametrize("sign", [";", "\t", "|"])
    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
    def test_a_table_beside_class_folders_is_used(self, tmp_path: Path, sign: str, encoding: str) -> None:
        classes(tmp_path / "raw")
        rows = [f"{name}/{n}.png{sign}picture {n} of {name}" for name in ("nine", "zero") for n in range(3)]
        (tmp_path / "raw/captions.csv").write_text("\n".join([f"file{sign}text", *rows]), encoding=encoding)
        seen = survey("raw")
        assert (seen.best.kind, seen.best.samples) == ("table", 6)
        assert build(config_of(seen, tmp_path)).accepted == 6

    @pytest.mark.parametrize("image", ["https://x/{}.jpg", "{}.png"])
    def test_a_first_row_of_data_is_told(self, tmp_path: Path, image: str) -> None:
        pngs(tmp_path / "raw")
        lines = [f"picture number {n}\t{image.format(n)}\n" for n in range(6)]
        (tmp_path / "raw/t.tsv").write_text("".join(lines))
        seen = survey("raw/t.tsv")
        assert "the first row of t.tsv looks like data" in warnings(seen) and seen.best.grade < 2
        (tmp_path / "raw/t.tsv").write_text("".join(["text\t0.jpg\n", *lines]))
        assert "looks like data" not in warnings(survey("raw/t.tsv"))

    def test_a_first_row_of_data_is_told_where_nothing_fits(self, tmp_path: Path) -> None:
        (tmp_path / "t.tsv").write_text("a picture\thttps://x/1\nanother one\thttps://x/2\n")
        with pytest.raises(UsageError, match=r"looks like data.*add a line before it that names the columns"):
            survey("t.tsv")

    def test_figures_are_those_of_all_tables(self, tmp_path: Path) -> None:
        pngs(tmp_path / "raw", 60, "0")
        for part in range(2):
            folder = tmp_path / "raw" / f"{part}"
            rows = [(f"{part}{n}.png", f"picture {part} {n}", f"{'cd'[n % 2]}{part}") for n in range(60)]
            raw.write_table(folder, rows).rename(tmp_path / "raw" / f"{part}.csv")
        told = evidence(survey("raw"))
        assert told["caption"].endswith(", 120 different")
        assert told["label"] == "label: 4 values, c0, d0, c1, d1"
        assert told["image"].endswith(", 10 of 20 looked at are there")

    @pytest.mark.parametrize("limit", ["MOST_ROWS", "MOST_TABLES"])
    def test_figures_of_a_part_are_said_to_be_so(
        self, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(f"tasks.dataset.init.table_sets.{limit}", 1 if limit == "MOST_TABLES" else 60)
        for part in range(2):
            rows = [(f"{part}{n}.png", f"picture {part} {n}", f"{'cd'[n % 2]}") for n in range(120)]
            path = raw.write_table(tmp_path / f"{part}", rows)
            (tmp_path / "raw").mkdir(exist_ok=True)
            path.rename(tmp_path / "raw" / f"{part}.csv")
        seen = survey("raw")
        assert evidence(seen)["caption"].endswith(", 120 different in 120 rows looked at")
        assert evidence(seen)["label"] == "label: 2 values in 120 rows looked at, c, d"
        assert config_text(seen).count("120 different in 120 rows looked at") == 2

    def test_long_tables_are_not_read_to_their_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tasks.dataset.init.table_sets.MOST_ROWS", 100)
        raw.write_table(tmp_path / "raw", [(f"{n}.png", f"picture number {n}", "x") for n in range(5000)])
        seen = survey("raw/captions.csv")
        assert evidence(seen)["table"].startswith("captions.csv: about ")
        assert 4000 < seen.best.samples < 6000


class TestImageFolders:
    def test_folder_names_as_captions_are_said_to_be_a_guess(self, tmp_path: Path) -> None:
        classes(tmp_path / "raw")
        seen = survey("raw")
        assert "nine, zero" in warnings(seen)
        assert config_of(seen, tmp_path).dataset.source.captions == "folder"  # type: ignore[union-attr]

    def test_folders_named_after_splits_are_the_splits(self, tmp_path: Path) -> None:
        for split in ("train", "val"):
            classes(tmp_path / "raw" / split)
        config = config_of(survey("raw"), tmp_path)
        assert config.dataset.splits.column == "folder"
        assert build(config).accepted == 12

    def test_images_that_lack_a_caption_are_counted(self, tmp_path: Path) -> None:
        captions_beside(tmp_path / "raw")
        (tmp_path / "raw" / "0.txt").unlink()
        (tmp_path / "raw" / "1.txt").write_bytes(b"\xff\xfe")
        told = warnings(survey("raw"))
        assert "1 image has no .txt beside" in told
        assert "1 of 5 looked at cannot be read: 1.txt: not UTF-8" in told

    @pytest.mark.parametrize(("make", "field"), [(captions_beside, None), (json_beside, "title")])
    def test_captions_in_upper_case_and_with_a_byte_order_mark(
        self, make: Callable[[Path], None], field: str | None, tmp_path: Path
    ) -> None:
        make(tmp_path / "raw")
        for path in list((tmp_path / "raw").iterdir()):
            content = path.read_bytes()
            path.rename(path.with_suffix(path.suffix.upper()))
            if path.suffix != ".png":
                path.with_suffix(path.suffix.upper()).write_bytes(b"\xef\xbb\xbf" + content)
        seen = survey("raw")
        config = config_of(seen, tmp_path)
        assert (config.dataset.source.field, warnings(seen)) == (field, "")  # type: ignore[union-attr]
        assert "“a picture called" in evidence(seen)["caption"]
        assert build(config).accepted == 6

    def test_captions_for_few_images_are_no_captions_for_all(self, tmp_path: Path) -> None:
        for name in ("nine", "zero"):
            pngs(tmp_path / "raw" / name)
        (tmp_path / "raw/nine/0.txt").write_text("a nine")
        (tmp_path / "raw/nine/1.txt").write_text("another nine")
        seen = survey("raw")
        assert seen.best.what == "images in one folder a class"
        assert "2 of 12 images have a .txt beside" in dict(seen.readings[1].seen)["images"]

    def test_formats_that_shards_do_not_hold_are_encoded(self, tmp_path: Path) -> None:
        captions_beside(tmp_path / "raw")
        (tmp_path / "raw" / "0.png").unlink()
        (tmp_path / "raw" / "0.bmp").write_bytes(png(1, kind="BMP"))
        config = config_of(survey("raw"), tmp_path)
        assert config.dataset.image.encode == "jpg"
        assert build(config).accepted == 6


class TestVolumes:
    def test_says_how_many_files_each_table_names(self, tmp_path: Path) -> None:
        nifti(tmp_path / "raw")
        torn = tmp_path / "raw" / "train" / "train_9_a_1.nii.gz"
        torn.write_bytes(b"torn")
        seen = survey("raw")
        told = evidence(seen)
        assert told["reports"].startswith("reports.csv: VolumeName matches 6 of 7 files")
        assert "2 labels: nodule, effusion" in told["labels"]
        assert "1 of 7 looked at cannot be read: train/train_9_a_1.nii.gz" in warnings(seen)
        assert "1 file has no row in reports.csv: rejected as report.missing" in warnings(seen)
        assert "train_9" not in config_text(seen)

    def test_the_patient_is_told_from_names_and_no_name_is_written(self, tmp_path: Path) -> None:
        nifti(tmp_path / "raw")
        seen = survey("raw")
        config = config_of(seen, tmp_path).dataset
        assert config.private and config.splits.group_by == "patient"
        assert "3 patients in 6 files" in evidence(seen)["patient"]
        assert "train_0" not in config_text(seen)

    @pytest.mark.parametrize(
        ("names", "count"),
        [
            (["phantom_001_a_1.npz", "phantom_001_b_1.npz", "phantom_002_a_1.npz"], 2),
            (["scan-7-early.npz", "scan-7-late.npz", "scan-8-early.npz"], 2),
            (["site_1.npz", "site_2.npz", "site_3.npz"], None),
            ([f"ward_1_{number}.npz" for number in range(50)] + ["ward_2_1.npz"], None),
        ],
    )
    def test_a_word_and_a_number_in_front_may_be_the_patient(
        self, names: list[str], count: int | None
    ) -> None:
        guessed = patients.guess(names)
        assert (None if guessed is None else guessed.count) == count

    def test_both_texts_of_a_report_are_taken(self, tmp_path: Path) -> None:
        nifti(tmp_path / "raw")
        source: Any = config_of(survey("raw"), tmp_path).dataset.source
        assert source.reports.text == ["Findings_EN", "Impressions_EN"]
        assert source.rescale == "header" and source.metadata is None

    def test_stored_values_are_rescaled_by_the_table(self, tmp_path: Path) -> None:
        nifti(tmp_path / "raw")
        for path in (tmp_path / "raw").rglob("*.nii.gz"):
            image = nibabel.load(path)
            stored = np.asarray(image.dataobj).astype(np.int16) + 1024
            nibabel.save(nibabel.Nifti1Image(stored, image.affine), path)
        config = config_of(survey("raw"), tmp_path)
        assert config.dataset.source.rescale == "metadata"  # type: ignore[union-attr]
        assert build(config).accepted == 6

    def test_hu_are_not_rescaled_by_a_header_that_says_so(self, tmp_path: Path) -> None:
        nifti(tmp_path / "raw")
        for path in (tmp_path / "raw").rglob("*.nii.gz"):
            image = nibabel.Nifti1Image(
                np.asarray(nibabel.load(path).dataobj), np.diag([-0.75, -0.75, 1.5, 1])
            )
            nibabel.save(image, path)
            content = bytearray(gzip.decompress(path.read_bytes()))
            content[112:120] = struct.pack("<ff", 1, -1024)
            path.write_bytes(gzip.compress(bytes(content)))
        seen = survey("raw")
        assert config_of(seen, tmp_path).dataset.source.rescale == "none"  # type: ignore[union-attr]
        assert "slope 1 and intercept -1024" in evidence(seen)["HU"]

    def test_a_scale_shows_in_the_values(self, tmp_path: Path) -> None:
        npz(tmp_path / "raw")
        seen = survey("raw")
        assert config_of(seen, tmp_path).dataset.source.scale == 1000  # type: ignore[union-attr]
        assert "array: arr_0" in config_text(seen)

    def test_hu_need_no_scale(self, tmp_path: Path) -> None:
        npz(tmp_path / "raw")
        for number, path in enumerate(sorted((tmp_path / "raw").glob("*.npz"))):
            np.savez_compressed(path, volume=scan(number), spacing=np.ones(3))
        source: Any = config_of(survey("raw"), tmp_path).dataset.source
        assert (source.scale, source.array) == (None, "volume")

    def test_tables_around_the_folder_are_found(self, tmp_path: Path) -> None:
        npz(tmp_path / "raw" / "volumes")
        (tmp_path / "raw/volumes/reports.csv").rename(tmp_path / "raw/reports.csv")
        config = config_of(survey("raw/volumes"), tmp_path)
        assert build(config).accepted == 6

    def test_without_reports_it_says_what_table_is_needed(self, tmp_path: Path) -> None:
        npz(tmp_path / "raw")
        (tmp_path / "raw" / "reports.csv").unlink()
        with pytest.raises(UsageError, match="no table of reports names any of 6 volumes"):
            survey("raw")


class TestChat:
    def test_suggests_a_filter_from_the_ratings(self, tmp_path: Path) -> None:
        chat.make(tmp_path / "raw")
        seen = survey("raw")
        assert "# filter: {relevance: 3, formatting: 3}" in config_text(seen)
        assert "of 12 turns looked at" in config_text(seen)
        assert config_of(seen, tmp_path).dataset.filter == {}

    def test_a_pattern_stays_a_pattern(self, tmp_path: Path) -> None:
        chat.make(tmp_path / "raw")
        config = config_of(survey("raw/*.parquet"), tmp_path)
        assert config.name == "raw"
        assert config.dataset.source.path == "raw/*.parquet"  # type: ignore[union-attr]
        assert build(config).accepted == 6

    def test_other_forms_of_turns_are_named(self, tmp_path: Path) -> None:
        turns = [{"from": "human", "value": "What is it?"}]
        (tmp_path / "a.jsonl").write_text(json.dumps({"image": "0.png", "conversations": turns}) + "\n")
        with pytest.raises(UsageError, match=r"conversations in a\.jsonl holds turns as from, value"):
            survey("a.jsonl")


class TestTars:
    def test_a_caption_in_json_becomes_the_text(self, tmp_path: Path) -> None:
        img2dataset(tmp_path / "raw")
        source: Any = config_of(survey("raw"), tmp_path).dataset.source
        assert source.members == {"txt": "json:caption"}

    def test_renamed_members_are_named(self, tmp_path: Path) -> None:
        tars(tmp_path / "raw", lambda number: {"image.png": png(number), "caption.txt": b"a thing"})
        config = config_of(survey("raw"), tmp_path)
        assert build(config).accepted == 6

    def test_of_two_images_a_sample_one_is_chosen(self, tmp_path: Path) -> None:
        tars(tmp_path / "raw", lambda number: {"jpg": png(1, kind="JPEG"), "png": png(2), "txt": b"a thing"})
        config = config_of(survey("raw"), tmp_path)
        assert build(config).accepted == 6

    def test_sizes_beside_the_tars_tell_the_samples(self, tmp_path: Path) -> None:
        webdataset(tmp_path / "raw")
        (tmp_path / "raw/sizes.json").write_text('{"00000.tar": 1000, "00001.tar": 500}')
        assert survey("raw").best.samples == 1500

    def test_a_torn_tar_is_evidence(self, tmp_path: Path) -> None:
        webdataset(tmp_path / "raw")
        (tmp_path / "raw/00002.tar").write_bytes(b"torn" * 500)
        seen = survey("raw")
        assert seen.best.samples == 6
        assert "00002.tar: no sound tar header" in warnings(seen)

    def test_reinforcements_without_images_say_what_lacks(self, tmp_path: Path) -> None:
        tars(tmp_path / "raw", reinforcement)
        with pytest.raises(UsageError, match="without images: give a folder with both"):
            survey("raw")


def bad_places() -> Iterator[tuple[str, Callable[[Path], object], str]]:
    yield "empty", lambda folder: None, "holds no files; Tarmac reads images"
    yield "hidden", lambda folder: (folder / ".a.png").write_bytes(b""), "holds no files"
    yield "documents", lambda folder: (folder / "a.pdf").write_bytes(b""), r"holds 1 \.pdf; Tarmac reads"
    yield "flat", lambda folder: pngs(folder), "no captions for 6 images: put 0.txt beside 0.png"
    yield (
        "upper case",
        lambda folder: pngs(folder)[0].replace(folder / "0.PNG"),
        r"put 0\.txt beside 0\.PNG, .*one folder a class$",
    )
    yield (
        "one class",
        lambda folder: pngs(folder / "bird"),
        r"as one class is no choice, images of others into folders beside bird/$",
    )
    yield "packed", lambda folder: (folder / "a.tar.gz").write_bytes(b""), "unpack it to .tar"
    yield "numbers", lambda folder: (folder / "a.csv").write_text("x,y\n1,2\n"), "its columns: x, y"


@pytest.mark.parametrize(("make", "message"), [pytest.param(*case[1:], id=case[0]) for case in bad_places()])
def test_nothing_recognised_says_what_is_there(
    make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    (tmp_path / "raw").mkdir()
    make(tmp_path / "raw")
    with pytest.raises(UsageError, match=message):
        survey("raw")


def test_a_place_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="PATH: there is no file or folder nowhere"):
        survey("nowhere")


@pytest.mark.parametrize("place", ["raw/0.PNG", "raw/*.png"])
def test_images_alone_are_no_source(place: str, tmp_path: Path) -> None:
    captions_beside(tmp_path / "raw")
    (tmp_path / "raw/0.png").rename(tmp_path / "raw/0.PNG")
    with pytest.raises(UsageError, match="give their folder"):
        survey(place)


def test_an_empty_place_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="PATH: it is empty"):
        survey("")


def test_what_is_gone_when_it_is_listed_is_passed_over(tmp_path: Path) -> None:
    captions_beside(tmp_path / "raw")
    (tmp_path / "raw/open").symlink_to("/proc/self/fd")  # it holds the folder that lists it, no longer
    assert survey("raw").best.samples == 6


def test_lists_no_more_than_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captions_beside(tmp_path / "raw")
    monkeypatch.setattr(inventory, "MOST_FILES", 8)
    seen = survey("raw")
    assert len(seen.inventory.files) == 8
    assert "among the first 8 files; there are more" in seen.inventory.described


@pytest.mark.parametrize(
    "text",
    ["no", "1e3", "a: b", "x #y", "${oc.env:HOME}", "it's", "x\ty", "", "*", "-", "2024-01-01", "ü ä", "5"],
)
def test_values_are_read_back_as_they_were(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    source = {"kind": "table", "path": "x", "image": text, "caption": f"{text} too"}
    path.write_text(
        flow({"name": "x", "dataset": {"output": "o", "modality": "image_text", "source": source}})
    )
    assert load(path).dataset.source.image == text  # type: ignore[union-attr]


def test_a_bucket_is_seen_as_a_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {}
    for name in ("table", "captions beside", "npz", "nifti", "chat", "img2dataset", "reinforced"):
        KINDS[name][0](tmp_path / "raw" / name)
        here[name] = survey(f"raw/{name}")
    with s3.moto_server(tmp_path / "log") as port, s3.reached_through(port, monkeypatch):
        s3.put(tmp_path / "raw", "lab")
        for name, local in here.items():
            seen = survey(f"s3://lab/{name}")
            assert seen.best.seen == local.best.seen
            assert config_text(seen).split() == config_text(local).replace("raw/", "s3://lab/").split()
        assert survey("s3://lab/table/captions.csv").best.kind == "table"
        assert survey("s3://lab/chat/*.parquet").best.samples == 6
        with pytest.raises(UsageError, match="s3://lab/nothing"):
            survey("s3://lab/nothing")


class TestCommand:
    def test_writes_the_config_and_says_what_comes_next(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        table(tmp_path / "raw" / "digits")
        assert cli.main(["init", "raw/digits"]) == 0
        said = capsys.readouterr().out
        assert "✓ configs/digits.yaml" in said and "tarmac build configs/digits.yaml" in said
        assert load(Path("configs/digits.yaml")).dataset.output == Path("data/digits")

    def test_never_overwrites(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        table(tmp_path / "raw" / "digits")
        out = tmp_path / "mine.yaml"
        out.write_text("mine")
        assert cli.main(["init", "raw/digits", "--out", str(out)]) == 2
        assert "--out" in capsys.readouterr().err
        assert out.read_text() == "mine"

    def test_json_is_one_object(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        table(tmp_path / "raw" / "digits")
        assert cli.main(["init", "raw/digits", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["ok"] and told["config"] == "configs/digits.yaml"
        assert told["readings"][0]["kind"] == "table"
        assert told["files"] == {".csv": 1, ".png": 6}

    def test_the_dataset_is_not_written_over_the_raw_data(self, tmp_path: Path) -> None:
        table(tmp_path / "data" / "digits")
        assert config_of(survey("data/digits"), tmp_path).dataset.output == Path("data/digits-shards")

    def test_a_built_dataset_is_no_raw_data(self, tmp_path: Path) -> None:
        version = tmp_path / "data/digits/versions/0123456789ab"
        version.mkdir(parents=True)
        (version / "manifest.json").write_text("{}")
        for place in (".", "data", "data/digits"):
            with pytest.raises(UsageError, match=r"a dataset that Tarmac built; tarmac look data/digits$"):
                survey(place)
        with pytest.raises(UsageError, match="takes in a dataset"):
            survey("data/**")

    @pytest.mark.parametrize("name", ["table", "captions beside", "chat", "img2dataset", "reinforced"])
    def test_a_dataset_below_is_left_out(self, name: str, tmp_path: Path) -> None:
        make, kind, _ = KINDS[name]
        make(tmp_path / "raw")
        raw.pictures(tmp_path / "others", 4)
        build(raw.config(tmp_path / "others", tmp_path / "raw/data/built"))
        seen = survey("raw")
        assert (seen.best.kind, seen.best.samples) == (kind, 6)
        assert seen.inventory.described.endswith(" besides 1 dataset")
        built = build(config_of(seen, tmp_path))
        assert (built.accepted, built.read) == (6, 6)
