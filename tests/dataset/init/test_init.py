"""What `tarmac init` writes for every kind of raw data, what it refuses, and the command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows import cli
from tasks.core.config import json_schema, load_config
from tasks.core.errors import UsageError
from tasks.core.schema.recipes import RECIPES
from tasks.dataset.building.builder import build
from tasks.dataset.init import config_text, inventory, survey
from tasks.dataset.init.config_text import flow
from tasks.dataset.version.manifest import read_manifest
from tests import s3
from tests.dataset import raw
from tests.dataset.init.kinds import (
    KINDS,
    captions_beside,
    classes,
    config_of,
    img2dataset,
    npz,
    pngs,
    table,
    taken,
)


@pytest.mark.parametrize("name", KINDS)
def test_what_it_writes_builds(name: str, tmp_path: Path) -> None:
    make, kind, modality = KINDS[name]
    make(tmp_path / "raw" / name)
    seen = survey(f"raw/{name}")
    assert (seen.best.kind, seen.best.modality, seen.best.samples) == (kind, modality, 6)
    text = config_text(seen)
    assert text == config_text(survey(str(tmp_path / "raw" / name) + "/"))
    config = config_of(seen, tmp_path)
    assert not str(config.dataset.all_sources[0].path).startswith("/")
    built = build(config)
    assert (built.accepted, built.read) == (6, 6)


RECIPE_OF = {"image_text": "clip", "reinforced": "clip_reinforced", "volume_report": "ct_clip", "chat": "vlm"}


@pytest.mark.parametrize("name", ["captions beside", "npz", "chat", "reinforced"])
def test_the_train_block_is_of_the_recipe_and_of_a_model_that_this_machine_can_train(
    name: str, tmp_path: Path
) -> None:
    make, _, modality = KINDS[name]
    make(tmp_path / "raw")
    seen = survey("raw")
    models = {}
    for has_gpu in (False, True):
        train = config_of(seen, tmp_path, has_gpu).train
        assert train is not None and train.recipe == RECIPE_OF[modality]
        models[has_gpu] = str(train.model)
        assert ("tarmac/" in models[has_gpu]) is not has_gpu
        assert train.precision == ("bf16" if has_gpu else "fp32")
    if name == "reinforced":
        assert "[{'width': 8}]" in models[False], "the data's teachers are 8 wide"


def test_there_are_eight_shards_where_there_are_samples_enough(tmp_path: Path) -> None:
    pngs(tmp_path / "raw", 100)
    for path in sorted((tmp_path / "raw").iterdir()):
        path.with_suffix(".txt").write_text(path.stem)
    built = build(config_of(survey("raw"), tmp_path))
    assert sum(split.shards for split in read_manifest(built.version).splits.values()) >= 8


def test_the_schema_knows_every_recipe_that_there_is() -> None:
    """By the schema an editor finds out which recipes there are."""
    assert json_schema()["$defs"]["Train"]["properties"]["recipe"]["enum"] == list(RECIPES)


@pytest.mark.parametrize(("place", "here"), [("photos", "photos"), ("data", ".")])
def test_what_it_writes_lies_apart_from_the_raw_data(
    place: str, here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npz(tmp_path / place)
    monkeypatch.chdir(tmp_path / here)
    config = config_of(survey("." if here == place else place), tmp_path)
    assert config.dataset.output.resolve() == tmp_path / f"{place}-tarmac"
    assert taken(config) == 6


def test_the_dataset_is_not_written_over_the_raw_data(tmp_path: Path) -> None:
    table(tmp_path / "data" / "digits")
    assert config_of(survey("data/digits"), tmp_path).dataset.output == Path("data/digits-shards")


def test_a_built_dataset_is_no_raw_data(tmp_path: Path) -> None:
    version = tmp_path / "data/digits/versions/0123456789ab"
    version.mkdir(parents=True)
    (version / "manifest.json").write_text("{}")
    for place in (".", "data", "data/digits"):
        with pytest.raises(UsageError, match=r"a dataset that Tarmac built; tarmac look data/digits$"):
            survey(place)
    with pytest.raises(UsageError, match="includes a dataset"):
        survey("data/**")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("others")
    raw.pictures(folder / "raw", 4)
    build(raw.config(folder / "raw", folder / "built"))
    return folder / "built"


@pytest.mark.parametrize("name", ["captions beside", "chat", "reinforced"])
def test_a_dataset_below_is_left_out(name: str, built: Path, tmp_path: Path) -> None:
    make, kind, _ = KINDS[name]
    make(tmp_path / "raw")
    shutil.copytree(built, tmp_path / "raw/data/built", symlinks=True)
    seen = survey("raw")
    assert (seen.best.kind, seen.best.samples) == (kind, 6)
    assert seen.inventory.described.endswith(" besides 1 dataset")
    assert taken(config_of(seen, tmp_path)) == 6


def bad_places() -> Iterator[tuple[str, Callable[[Path], object], str]]:
    yield "empty", lambda folder: None, "holds no files; Tarmac reads images"
    yield "hidden", lambda folder: (folder / ".a.png").write_bytes(b""), "holds no files"
    yield "documents", lambda folder: (folder / "a.pdf").write_bytes(b""), r"holds 1 \.pdf; Tarmac reads"
    yield "flat", lambda folder: pngs(folder), "no captions for 6 images: put 0.txt beside 0.png"
    yield (
        "upper case",
        lambda folder: pngs(folder)[0].replace(folder / "0.PNG"),
        r"put 0\.txt beside 0\.PNG, .*one folder per class$",
    )
    yield (
        "one class",
        lambda folder: pngs(folder / "bird"),
        r"as a single class leaves no choice, images of others into folders beside bird/$",
    )
    yield (
        "JPEG XL",
        lambda folder: (folder / "a.jxl").write_bytes(b"x"),
        r"holds 1 \.jxl; 1 image in \.jxl, which is not read: convert to jpg$",
    )
    yield "packed", lambda folder: (folder / "a.tar.bz2").write_bytes(b""), "unpack it to .tar"
    yield "numbers", lambda folder: (folder / "a.csv").write_text("x,y\n1,2\n"), "its columns: x, y"
    yield (
        "class folders and a table that cannot be read",
        lambda folder: (classes(folder), (folder / "a.csv").write_text("file,file\n0.png,ü\n")),
        r"a\.csv may hold the captions of 6 images, and it cannot be read: .*rename one\. .* move it out",
    )
    yield (
        "a table whose images are nowhere",
        lambda folder: raw.write_table(folder, [(f"img/{n}.png", f"picture {n}", "") for n in range(3)]),
        r"captions\.csv: file names images that are not there, such as img/0\.png \(0 of 3 looked at are "
        r"there\): put them there, or give the folder that holds both$",
    )


@pytest.mark.parametrize(("make", "message"), [pytest.param(*case[1:], id=case[0]) for case in bad_places()])
def test_a_place_without_usable_data_is_described(
    make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    (tmp_path / "raw").mkdir()
    make(tmp_path / "raw")
    with pytest.raises(UsageError, match=message):
        survey("raw")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("", "PATH: it is empty"),
        ("nowhere", "PATH: there is no file or folder nowhere"),
        ("raw/0.PNG", r"PATH: raw/0\.PNG: images by themselves, .*give their folder"),
        ("raw/1.txt", r"PATH: raw/1\.txt: not a kind of file that Tarmac reads: images"),
        ("raw/*.png", "give their folder"),
        ("raw/head.csv", r"PATH: raw/head\.csv: it has a header and no rows$"),
        (
            "raw/data.json",
            r"PATH: raw/data\.json: .*holds 'data'; documents that are read: a list of objects",
        ),
    ],
)
def test_a_place_of_no_use_is_a_usage_error(place: str, message: str, tmp_path: Path) -> None:
    captions_beside(tmp_path / "raw")
    (tmp_path / "raw/0.png").rename(tmp_path / "raw/0.PNG")
    (tmp_path / "raw/head.csv").write_text("file,caption\n")
    (tmp_path / "raw/data.json").write_text('{"data": [{"file": "0.png"}]}')
    with pytest.raises(UsageError, match=message):
        survey(place)


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
    config = {"name": "x", "dataset": {"output": "o", "modality": "image_text", "source": source}}
    path.write_text(flow(config))
    assert load_config(path).dataset.source.image == text  # type: ignore[union-attr]


def test_a_bucket_is_seen_as_a_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here: dict[str, Any] = {}
    for name in ("table", "nifti", "chat", "reinforced"):
        KINDS[name][0](tmp_path / "raw" / name)
        here[name] = survey(f"raw/{name}")
    with s3.moto_server(tmp_path / "log") as port, s3.reached_through(port, monkeypatch):
        s3.put(tmp_path / "raw", "lab")
        for name, local in here.items():
            seen = survey(f"s3://lab/{name}")
            assert str(seen.best.seen) == str(local.best.seen).replace("raw/", "s3://lab/")
            assert config_text(seen).split() == config_text(local).replace("raw/", "s3://lab/").split()
        assert survey("s3://lab/table/captions.csv").best.kind == "table"
        assert survey("s3://lab/chat/*.parquet").best.samples == 6
        with pytest.raises(UsageError, match="s3://lab/nothing"):
            survey("s3://lab/nothing")


def test_the_command_writes_the_config_and_names_the_next_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table(tmp_path / "raw" / "digits")
    assert cli.main(["init", "raw/digits"]) == 0
    output = capsys.readouterr().out
    assert "✓ configs/digits.yaml" in output and "tarmac run configs/digits.yaml" in output
    assert load_config(Path("configs/digits.yaml")).dataset.output == Path("data/digits")
    assert cli.main(["init", "raw/digits", "--json", "--out", "other.yaml"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] and answer["config"] == "other.yaml"
    assert answer["readings"][0]["kind"] == "table"
    assert answer["files"] == {".csv": 1, ".png": 6}


def test_the_command_never_overwrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    img2dataset(tmp_path / "raw" / "digits")
    out = tmp_path / "mine.yaml"
    out.write_text("mine")
    assert cli.main(["init", "raw/digits", "--out", str(out)]) == 2
    assert "--out" in capsys.readouterr().err
    assert out.read_text() == "mine"
