"""Datasets of Hugging Face's hub as sources: `hf://datasets/OWNER/NAME[@REVISION]/path`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.cli import main
from tasks.core.config import load_config
from tasks.core.errors import DataError, TarmacError, UsageError
from tasks.core.folders import open_store
from tasks.core.patterns import expand
from tasks.core.remote import clients, remote_stores
from tasks.core.stores import ABSENT, Store, StoreUnreachable
from tasks.dataset.building.builder import build
from tasks.dataset.init import survey
from tasks.dataset.version.manifest import read_manifest
from tests.dataset import raw
from tests.dataset.init.kinds import config_of
from tests.dataset.raw import table as tables
from tests.hub import StandInHub
from tests.hub_datasets import datasets_hub, publish


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    monkeypatch.setattr(clients, "PAUSE_S", 0.01)
    with datasets_hub(tmp_path / "home", monkeypatch) as server:
        yield server


def pets(folder: Path, first: int = 0) -> Path:
    for split, numbers in (("train", (20, first)), ("test", (8, first + 20))):
        rows = tables.rows(*numbers)
        tables.write_parquet(folder / "data" / f"{split}-00000-of-00001.parquet", rows)
    (folder / "README.md").write_text("# Pets\n")
    return folder


def test_a_dataset_of_the_hub_is_found_planned_and_built(
    hub: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    publish(hub, "ann/pets", pets(tmp_path / "pets"))
    assert main(["init", "hf://datasets/ann/pets", "--out", "x.yaml"]) == 0
    assert "hf://datasets/ann/pets: 2 .parquet, 1 .md" in capsys.readouterr().out
    config = config_of(survey("hf://datasets/ann/pets"), tmp_path)
    assert config.dataset.source.path == "hf://datasets/ann/pets/data/*.parquet"  # type: ignore[union-attr]
    assert main(["plan", "x.yaml"]) == 0
    version = build(config).version
    splits = {name: split.samples for name, split in read_manifest(version).splits.items()}
    assert splits == {"train": 20, "test": 8}
    local = build(tables.config(str(tmp_path / "pets" / "data"), tmp_path / "out"))
    assert local.accepted == 28


def test_a_revision_keeps_its_own_files(hub: StandInHub, tmp_path: Path) -> None:
    first = publish(hub, "ann/pets", pets(tmp_path / "a"))
    publish(hub, "ann/pets", pets(tmp_path / "b", 100))
    file = "data/test-00000-of-00001.parquet"
    old, new = (open_store(f"hf://datasets/ann/pets{at}") for at in (f"@{first}", ""))
    assert old.stat(file) != new.stat(file) and old.stat("data") == ABSENT == old.stat("none.csv")
    for store, folder in ((old, "a"), (new, "b")):
        assert store.read(file, 1 << 20) == (tmp_path / folder / file).read_bytes()
        with store.open(file) as opened:
            opened.seek(-4, os.SEEK_END)
            assert opened.read() == b"PAR1"
    assert list(old.files()) == [
        "README.md",
        "data/test-00000-of-00001.parquet",
        "data/train-00000-of-00001.parquet",
    ]
    assert expand("hf://datasets/ann/pets/data/{train,test}-*.parquet", [".parquet"])[0].endswith(
        "of-00001.parquet"
    )


def test_a_commit_during_a_build_is_noticed(hub: StandInHub, tmp_path: Path) -> None:
    publish(hub, "ann/pets", pets(tmp_path / "a"))
    store = open_store("hf://datasets/ann/pets")
    before = store.stat("data/test-00000-of-00001.parquet")
    publish(hub, "ann/pets", pets(tmp_path / "b", 100))
    assert store.stat("data/test-00000-of-00001.parquet") != before


def test_images_that_a_table_names_lie_beside_it(hub: StandInHub, tmp_path: Path) -> None:
    raw.pictures(tmp_path / "raw", 6)
    publish(hub, "ann/photos", tmp_path / "raw")
    keys = {"image": "file", "caption": "caption"}
    config = tables.config("hf://datasets/ann/photos/captions.csv", tmp_path / "out", **keys)
    assert build(config).accepted == 6


def failing(hub: StandInHub, tmp_path: Path, path: str) -> str:
    with pytest.raises(TarmacError) as caught:
        build(tables.config(path, tmp_path / "out"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_read_is_one_line(
    hub: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(hub, "ann/pets", pets(tmp_path / "a"))
    publish(hub, "ann/gated", tmp_path / "a", gated=True)
    publish(hub, "ann/secret", tmp_path / "a", private=True)
    for name in ("ann/nowhere", "ann/secret"):
        said = failing(hub, tmp_path, f"hf://datasets/{name}/data/*.parquet")
        assert (
            f"the hub has no dataset {name}, or it is private: set HF_TOKEN, or run `hf auth login`" in said
        )
    said = failing(hub, tmp_path, "hf://datasets/ann/gated/data/*.parquet")
    assert "ann/gated is gated: accept its terms on its page, and set HF_TOKEN" in said
    said = failing(hub, tmp_path, "hf://datasets/ann/pets@v9/data/*.parquet")
    assert "the dataset ann/pets has no revision v9" in said
    said = failing(hub, tmp_path, "hf://datasets/ann/pets/more/*.parquet")
    assert "dataset.source.path: there is no hf://datasets/ann/pets/more/*.parquet" in said
    hub.users["hf_ann"] = "ann"
    monkeypatch.setenv("HF_TOKEN", "hf_ann")
    secret = tables.config("hf://datasets/ann/secret/data/*.parquet", tmp_path / "out")
    assert build(secret).accepted == 28


@pytest.mark.parametrize(
    "ask",
    [lambda store: store.stat("x.csv"), pytest.param(lambda store: store.entries(), marks=pytest.mark.proof)],
    ids=["stat", "entries"],
)
def test_a_hub_that_is_gone_is_an_error_soon(
    hub: StandInHub, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Store], object]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    began = time.monotonic()
    with pytest.raises(StoreUnreachable, match=r"cannot be reached.*check the network and run again"):
        ask(open_store("hf://datasets/ann/pets"))
    assert time.monotonic() - began < 60


def test_a_hub_that_says_nothing_is_given_up(
    hub: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "REQUEST_S", 0.5)
    monkeypatch.setattr(remote_stores, "LISTING_S", 0.5)
    hub.hushed.set()
    before = set(threading.enumerate())  # of other tests in this process
    with pytest.raises(StoreUnreachable, match="does not answer in time"):
        open_store("hf://datasets/ann/pets").entries()
    waiting = [one.name for one in threading.enumerate() if one not in before and not one.daemon]
    assert not waiting, "the process would end only when the hub answers"


def test_offline_is_one_line(hub: StandInHub, tmp_path: Path) -> None:
    """In a process of its own, because huggingface_hub reads the variable when it is imported."""
    command = [sys.executable, "-m", "flows.cli", "init", "hf://datasets/ann/pets", "--json"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 1 and "HF_HUB_OFFLINE is set; unset it" in json.loads(done.stdout)["error"]


@pytest.mark.parametrize("address", ["hf://ann/pets", "hf://datasets/pets", "hf://spaces/ann/pets/x.csv"])
def test_an_address_of_another_kind_names_the_form(address: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        f"{{name: x, dataset: {{output: o, modality: image_text, source: "
        f"{{kind: table, path: '{address}', image: a, caption: b}}}}}}"
    )
    with pytest.raises(UsageError, match="an address of the hub is hf://datasets/OWNER/NAME, with @REVISION"):
        load_config(tmp_path / "x.yaml")


def test_a_dataset_is_not_mirrored_to_the_hub(tmp_path: Path) -> None:
    config = raw.config(tmp_path, tmp_path / "out", mirror="hf://datasets/ann/pets")
    raw.pictures(tmp_path, 2)
    with pytest.raises((UsageError, DataError), match="cannot be written; give an address in s3:// or gs://"):
        build(config)
