"""Tables of web addresses: every address is accounted for, and none is asked for twice without a reason."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from tasks.core.errors import DataError, UsageError
from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.building.conversion.convert import _groups
from tasks.dataset.building.forecast import forecast
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version.tables import ArrowBatches, read_table
from tests.dataset import raw
from tests.dataset.building.prepared import changed, published
from tests.picture_server import PictureServer, picture_server

ROOT = Path(__file__).parents[3]
GOOD, GONE, LATER, PARKED = range(30), range(30, 36), range(36, 40), range(40, 44)


@pytest.fixture
def server() -> Iterator[PictureServer]:
    with picture_server() as running:
        yield running


def paths() -> list[str]:
    """Those of LATER answer at their fourth request, which is the first one of a second build."""
    return [
        *(f"/{number}.jpg" for number in GOOD),
        *(f"/404/{number}.jpg" for number in GONE),
        *(f"/until/3/503/{number}.jpg" for number in LATER),
        *(f"/html/{number}.jpg" for number in PARKED),
    ]


def table(folder: Path, names: list[str]) -> Path:
    return raw.write_table(folder / "raw", [(name, f"picture of {name[-9:]}", "x") for name in names])


def rotten(folder: Path, server: PictureServer, workers: int = 1) -> Config:
    table(folder, [server.address + path for path in paths()])
    return raw.config(folder / "raw", folder / "out", workers=workers, splits={}, reject_budget=0.5)


def asked_by(server: PictureServer, config: Config, **options: bool) -> Counter[str]:
    """What a build asks for that then becomes current."""
    before = server.asked
    published(config, **options)
    return server.asked - before


def test_every_address_is_accounted_for_and_only_what_may_pass_is_asked_for_again(
    tmp_path: Path, server: PictureServer
) -> None:
    config = rotten(tmp_path, server)
    first = published(config)
    reasons = {"source.gone": 6, "source.unreachable": 4, "image.not_an_image": 4}
    assert (first.read, first.accepted, first.rejects) == (44, 30, reasons)
    rows = read_table(first.version / "rejects.parquet").to_pylist()
    host = f"127.0.0.1:{server.port}"
    assert {(row["reason"], row["detail"]) for row in rows} == {
        ("source.gone", f"{host} answers 404 Not Found"),
        ("source.unreachable", f"{host} answers 503 Service Unavailable, tried 3 times"),
        ("image.not_an_image", "it is HTML"),
    }
    assert [row["source"] for row in rows] == [f"captions.csv:{line}" for line in range(32, 46)]
    assert asked_by(server, config) == {f"/until/3/503/{number}.jpg": 1 for number in LATER}
    second = build(config)
    assert second.up_to_date and second.accepted == 34
    assert second.rejects == {"source.gone": 6, "image.not_an_image": 4}
    assert asked_by(server, config) == {}
    assert verify(config.dataset.output, "full").ok
    fresh = build(changed(config, output=tmp_path / "fresh"))
    assert raw.contents(fresh.version) == raw.contents(second.version)


def test_a_changed_row_is_the_only_one_that_is_fetched(tmp_path: Path, server: PictureServer) -> None:
    config = rotten(tmp_path, server)
    for _ in range(2):
        published(config)
    rows = [server.address + path for path in paths()]
    rows[0] = f"{server.address}/100.jpg"
    table(tmp_path, [*rows, f"{server.address}/101.jpg"])
    assert asked_by(server, config) == {"/100.jpg": 1, "/101.jpg": 1}
    smaller = changed(config, image=config.dataset.image.model_copy(update={"max_side": 8}))
    assert asked_by(server, smaller)["/5.jpg"] == 1, "by other rules every image is needed again"


def test_a_kept_sample_whose_bytes_are_damaged_is_fetched_again(
    tmp_path: Path, server: PictureServer
) -> None:
    config = rotten(tmp_path, server)
    version = published(config).version
    for tar in version.glob("train/*.tar"):
        with tar.open("r+b") as file:  # the first sample of each
            file.seek(700)
            file.write(b"\xff" * 8)
    damaged = {tar.stat().st_ino for tar in version.glob("train/*.tar")}
    asked = asked_by(server, config)
    good = [path for path in asked if path.count("/") == 1]
    assert good and asked.total() == len(good) + len(LATER)
    current = config.dataset.output / "current"
    written = [f"train/{tar.name}" for tar in current.glob("train/*.tar") if tar.stat().st_ino not in damaged]
    bad = {finding.where["shard"] for finding in verify(current, "full").findings}
    assert written and bad.isdisjoint(written)


def test_rehash_asks_for_everything_and_loses_nothing_to_a_dead_server(
    tmp_path: Path, server: PictureServer
) -> None:
    with picture_server() as other:
        names = [f"{other.address}/{number}.jpg" for number in range(20)]
        table(tmp_path, [*names, *(f"{server.address}/{number}.jpg" for number in range(20))])
        config = raw.config(tmp_path / "raw", tmp_path / "out", splits={})
        first = published(config)
        assert asked_by(server, config, rehash=True) == {f"/{number}.jpg": 1 for number in range(20)}
        assert set(other.asked.values()) == {2}
    third = published(config, rehash=True)
    assert (third.accepted, third.shards_rewritten) == (first.accepted, 0) == (40, 0)


def test_rehash_keeps_what_a_dead_server_had_beside_what_has_changed(
    tmp_path: Path, server: PictureServer
) -> None:
    back = [f"{server.address}/until/1/404/{number}.jpg" for number in range(4)]
    with picture_server() as other:
        table(tmp_path, [*back, *(f"{other.address}/{number}.jpg" for number in range(12))])
        config = raw.config(tmp_path / "raw", tmp_path / "out", splits={}, reject_budget=0.5)
        assert published(config).accepted == 12
        assert build(config).up_to_date, "what is gone is not asked for again"
    again = published(config, rehash=True)
    assert (again.accepted, again.rejects) == (16, {})


def test_a_build_of_old_links_that_is_stopped_says_how_to_go_on(
    tmp_path: Path, server: PictureServer
) -> None:
    config = changed(rotten(tmp_path, server), reject_budget=0.05)
    with pytest.raises(DataError) as stopped:
        build(config)
    assert (
        "  addresses rot with time, in old tables 20 to 40 % of them: to build from those that are left, "
        in (str(stopped.value))
    )
    share = re.search(r"set dataset\.reject_budget: (0\.\d+); what was fetched is kept", str(stopped.value))
    assert share is not None
    before = server.asked
    result = build(changed(config, reject_budget=float(share[1])))
    assert result.accepted >= 30 and not any(
        "404" in path or path.count("/") == 1 for path in server.asked - before
    )


def test_a_maximum_of_bytes_is_refused_because_no_size_is_known(
    tmp_path: Path, server: PictureServer
) -> None:
    config = rotten(tmp_path, server)
    wrong = raw.config(tmp_path / "raw", tmp_path / "out", shard={"bytes": "1MB"})
    with pytest.raises(
        UsageError, match=r"^dataset\.shard\.bytes: .* at addresses .*use dataset\.shard\.samples"
    ):
        build(wrong)
    assert server.asked == {} and config.dataset.shard.samples


def test_the_plan_shows_what_its_tried_addresses_gave(tmp_path: Path, server: PictureServer) -> None:
    work = forecast(rotten(tmp_path, server)).work
    assert work is not None and work.tried == 20 and work.seconds < 5
    assert {"source.gone", "source.unreachable"} & set(work.tried_reasons)
    assert sum(work.tried_reasons.values()) == work.tried - work.taken
    assert set(server.asked.values()) <= {1, 3}, "each once, or as often as it is tried"


def test_a_killed_build_loses_only_the_shards_in_progress(tmp_path: Path) -> None:
    with picture_server(latency=0.3) as server:
        names = [f"{server.address}/{number}.jpg" for number in range(900)]
        table(tmp_path, names)
        config = raw.config(tmp_path / "raw", tmp_path / "out", workers=1, splits={})
        program = (
            "import sys; from pathlib import Path; from tests.dataset import raw\n"
            "from tasks.dataset.building.builder import build\n"
            "folder = Path(sys.argv[1])\n"
            "build(raw.config(folder / 'raw', folder / 'out', workers=1, splits={}))\n"
        )
        killed = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, start_new_session=True
        )
        staging = tmp_path / "out" / "staging"
        while len(list(staging.glob("[0-9a-f]*.arrow"))) < 12:
            assert killed.poll() is None
            time.sleep(0.01)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        time.sleep(1)
        kept = sum(ArrowBatches(path)[0].num_rows for path in staging.glob("[0-9a-f]*.arrow"))
        before = server.asked
        assert build(config).accepted == 900
        assert kept > 100 and (server.asked - before).total() == 900 - kept


CLI = """
import sys
from flows.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.proof
def test_an_interrupt_ends_a_build_with_hundreds_of_requests_under_way(
    tmp_path: Path, server: PictureServer
) -> None:
    """Ctrl-C reaches the whole foreground group; the build's own child must end as well."""
    names = [f"{server.on(f'127.0.0.{2 + number % 4}')}/hang/{number}.jpg" for number in range(2000)]
    table(tmp_path, names)
    config = raw.config(tmp_path / "raw", tmp_path / "out", workers=2, splits={})
    block = {**config.model_dump(mode="json", exclude_none=True), "runs": str(tmp_path / "runs")}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(block))
    command = [sys.executable, "-c", CLI, "build", str(tmp_path / "config.yaml")]
    running = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE, text=True)
    while sum(server.told()[1].values()) < 500:
        assert running.poll() is None
        time.sleep(0.1)
    began = time.monotonic()
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130 and "Traceback" not in said
    assert time.monotonic() - began < 5
    ours = [
        one
        for one in psutil.process_iter(["cmdline"])
        if str(tmp_path) in " ".join(one.info["cmdline"] or [])
    ]
    assert not ours


@pytest.mark.proof
def test_a_tenth_of_hanging_addresses_costs_one_wait_and_not_one_each(
    tmp_path: Path, server: PictureServer
) -> None:
    names = [f"{server.address}/{'hang/' if number % 10 == 0 else ''}{number}.jpg" for number in range(3000)]
    table(tmp_path, names)
    config = raw.config(tmp_path / "raw", tmp_path / "out", workers=2, splits={}, reject_budget=0.2)
    began = time.monotonic()
    result = build(config)
    assert (result.accepted, result.rejects) == (2700, {"source.unreachable": 300})
    assert time.monotonic() - began < 120


def test_tasks_that_fetch_grow_so_that_few_wait_for_their_slowest_address(tmp_path: Path) -> None:
    config = raw.config(tmp_path, tmp_path / "out", workers=2)

    class Planned:
        accepted, planned, entry_bytes = 25_600, 100, 0

    groups = list(_groups(config, Planned, range(100), fetches=True))  # type: ignore[arg-type]
    assert [len(group) for group in groups] == [4, 4, 8, 8, 16, 16, 32, 12]
    assert [ordinal for group in groups for ordinal in group] == list(range(100))
    assert {len(group) for group in _groups(config, Planned, range(100), fetches=False)} <= {8, 4}  # type: ignore[arg-type]
