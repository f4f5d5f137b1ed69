"""A canary per row of docs/private-parts.md: names and formats of other libraries that they do not promise."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[1] / "docs/private-parts.md"
WRITE = """
import wandb
run = wandb.init(dir={folder!r}, mode="offline", settings=wandb.Settings(console="off", silent=True))
run.log({{"train/loss": 1.5}})
run.finish()
"""


def found(path: str) -> Any:
    """What `module:attribute` names, or the module."""
    module, _, name = path.partition(":")
    return attrgetter(name)(importlib.import_module(module)) if name else importlib.import_module(module)


def source(path: str) -> str:
    return inspect.getsource(found(path))


def parameters(path: str) -> list[str]:
    return list(inspect.signature(found(path)).parameters)


def forkserver(folder: Path) -> None:
    from multiprocessing import forkserver as module

    assert parameters("multiprocessing.util:spawnv_passfds") == ["path", "args", "passfds"]
    assert "util.spawnv_passfds(" in source("multiprocessing.forkserver:ForkServer.ensure_running")
    assert callable(module._forkserver._stop)  # type: ignore[attr-defined]


def queue(folder: Path) -> None:
    assert parameters("multiprocessing.queues:Queue._on_queue_feeder_error") == ["e", "obj"]
    assert "onerror(e, obj)" in source("multiprocessing.queues:Queue._feed")


def dataloader(folder: Path) -> None:
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as Iter

    assert parameters("torch.utils.data.dataloader:_MultiProcessingDataLoaderIter._shutdown_workers") == [
        "self"
    ]
    assert {"_try_get_data", "_get_data", "_next_data"} <= set(vars(Iter))


def open_clip(folder: Path) -> None:
    module = importlib.import_module("tasks.models.clip.openclip").open_clip
    assert "ViT-B-32" in module.factory._MODEL_CONFIGS
    usual = module.tokenizer._tokenizer
    assert isinstance(usual, module.tokenizer.SimpleTokenizer)
    assert {"encoder", "decoder", "bpe_ranks", "cache"} <= set(vars(usual))


def tokenizer_file(folder: Path) -> None:
    from tasks.core.tokens import caption_counter

    count = caption_counter()
    assert count is not None and count("a photo of a seven") == 7


def wandb(folder: Path) -> None:
    from tasks.supervision.tracking.wandb_file import read_wandb_file

    code = WRITE.format(folder=str(folder))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    [path] = folder.rglob("*.wandb")
    assert read_wandb_file(path).rows == [{"train/loss": 1.5}]


def tensorboard(folder: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event as Read
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    value = Summary.Value(tag="train/loss", simple_value=1.5, node_name="the row")
    written = Event(step=3, wall_time=2.0, summary=Summary(value=[value])).SerializeToString()
    [read] = Read.FromString(written).summary.value
    assert (read.tag, read.simple_value, read.node_name) == ("train/loss", 1.5, "the row")


def prefect_sqlite(folder: Path) -> None:
    from prefect.server.database.configurations import AioSqliteConfiguration
    from prefect.server.database.dependencies import MODELS_DEPENDENCIES

    assert parameters("prefect.server.database.configurations:AioSqliteConfiguration.begin_transaction") == [
        "self",
        "session",
        "with_for_update",
    ]
    assert "IMMEDIATE" in inspect.getsource(AioSqliteConfiguration.begin_transaction)
    assert "database_config" in MODELS_DEPENDENCIES


def prefect_pages(folder: Path) -> None:
    assert "prefect.__ui_v2_static_path__" in source("prefect.server.api.server")


def s3fs(folder: Path) -> None:
    from s3fs import S3FileSystem

    assert parameters("s3fs:S3FileSystem._url")[:3] == ["self", "path", "expires"]
    assert inspect.iscoroutinefunction(S3FileSystem._url) and S3FileSystem(anon=True).req_kw == {}


def prefect_names(folder: Path) -> None:
    served = source("prefect.server.api.server")
    assert "PREFECT__SERVER_EPHEMERAL" in served and "PREFECT__SERVER_FINAL" in served
    assert "PREFECT__FLOW_RUN_ID" in source("prefect.runtime.flow_run")


def site_search(folder: Path) -> None:
    bundles = Path(found("material").__file__).parent.glob("templates/assets/javascripts/bundle.*.min.js")
    [text] = [bundle.read_text(encoding="utf-8") for bundle in bundles]
    assert "next({type:0,data:" in text and "docs:" in text and "next({type:2,data:" in text


CANARIES: dict[str, Callable[[Path], None]] = {
    canary.__name__: canary
    for canary in (
        forkserver, queue, dataloader, open_clip, tokenizer_file, wandb, tensorboard, s3fs,
        prefect_sqlite, prefect_pages, prefect_names, site_search,
    )
}  # fmt: skip


@pytest.mark.parametrize("row", CANARIES)
def test_a_private_part_is_as_it_was_read(row: str, tmp_path: Path) -> None:
    try:
        CANARIES[row](tmp_path)
    except (AssertionError, AttributeError, ImportError, TypeError) as error:
        pytest.fail(f"docs/private-parts.md#{row}: the library has changed: {error!r}")


def test_each_row_has_a_canary() -> None:
    assert set(re.findall(r'<a id="(\w+)">', PAGE.read_text())) == set(CANARIES)
