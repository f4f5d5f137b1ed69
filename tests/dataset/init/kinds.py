"""Small raw data of every kind that `tarmac init` knows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import nibabel
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tasks.core.config import load_config
from tasks.core.schema import Config
from tasks.dataset.formats.volumes import stored
from tasks.dataset.init import PlaceSurvey, config_text
from tasks.dataset.sources import open_sources
from tasks.dataset.sources.protocol import of_files
from tests.dataset import raw
from tests.dataset.raw import chat, png, shards

LUNGS = '"The lungs are clear, no nodule is seen."'


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


def thousandths(number: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"arr_0": scan(number).astype(np.float32) / 1000}


def npz(folder: Path, arrays: Callable[[int], dict[str, np.ndarray[Any, Any]]] = thousandths) -> None:
    folder.mkdir(parents=True)
    names = [f"p{number // 2}_scan_{number % 2}" for number in range(6)]
    for number, name in enumerate(names):
        np.savez_compressed(folder / f"{name}.npz", **arrays(number))
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


def tars(folder: Path, make: Callable[[int], Mapping[str, bytes]], count: int = 3) -> None:
    """Two tars of `count` samples each, whose members `make` gives by suffix."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(2):
        numbers = range(shard * count, (shard + 1) * count)
        members = ((f"{n:09d}.{suffix}", content) for n in numbers for suffix, content in make(n).items())
        (folder / f"{shard:05d}.tar").write_bytes(shards.tar_bytes(members))


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


def reinforced(folder: Path) -> None:
    """As published: the images in tars of their own."""
    tars(folder / "images", lambda number: {"jpg": png(number, kind="JPEG"), "txt": b"a thing"})
    tars(folder / "reinforcement", lambda _: shards.reinforcement())


KINDS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "table": (table, "table", "image_text"),
    "parquet": (parquet, "table", "image_text"),
    "captions beside": (captions_beside, "image_folder", "image_text"),
    "json beside": (json_beside, "image_folder", "image_text"),
    "Klassen (groß)": (classes, "image_folder", "image_text"),
    "npz": (npz, "npz", "volume_report"),
    "nifti": (nifti, "nifti", "volume_report"),
    "chat": (chat.make, "chat", "chat"),
    "webdataset": (webdataset, "shards", "image_text"),
    "volumes in tars": (volumes_in_tars, "shards", "volume_report"),
    "img2dataset": (img2dataset, "shards", "image_text"),
    "reinforced": (reinforced, "shards", "reinforced"),
}


SCHEMA = jsonschema.Draft202012Validator(Config.model_json_schema())


def config_of(seen: PlaceSurvey, tmp_path: Path, has_gpu: bool = False) -> Config:
    """The config that is written, which both editors and the loader accept."""
    text = config_text(seen, has_gpu)
    SCHEMA.validate(yaml.safe_load(text))
    path = tmp_path / "written.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path)


def taken(config: Config) -> int:
    """How many samples the config's source hands over; a build would ask for them in the same way."""
    (source,) = open_sources(config.dataset)
    source.columns()
    items = [item for container in source.containers() for item in source.items(container)]
    sound = [item for item in items if item.fault is None]
    return sum(bool(item.members or of_files(source).read(item.file, item.content)) for item in sound)


def warnings(seen: PlaceSurvey) -> str:
    return "\n".join(seen.best.warnings)
