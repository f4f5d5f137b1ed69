"""The first day of people with data of their own, by the commands that they type, on data as it is out there."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tasks.core.files import read_json
from tasks.dataset.version.versions import resolve
from tasks.loader.indexed import IndexedReader
from tests.dataset import raw
from tests.services import BIN

pytestmark = pytest.mark.system
ORIENTATION = 0x0112


class Person:
    """Somebody at a terminal in a folder of their own, without a Prefect server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        self.env = {**kept, "PREFECT_HOME": str(folder / "prefect")}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [BIN / "tarmac", *arguments],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def types(self, *arguments: str, expecting: int = 0) -> str:
        """What the terminal shows of a command that ends with this exit code."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=400)
        assert process.returncode == expecting, (arguments, out, err)
        assert "Traceback" not in out + err
        return out + err

    def samples(self, split: str, dataset: str = "data/raw") -> list[dict[str, bytes]]:
        reader = IndexedReader(resolve(self.folder / dataset), split)
        return [
            {name: bytes(content) for name, content in reader.read(row).members.items()}
            for row in range(len(reader))
        ]


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def photo(seed: int, kind: str, orientation: int = 1) -> bytes:
    """Wider than high as it is stored; on a phone that is held upright the tag says so."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    buffer = io.BytesIO()
    picture = Image.effect_noise((48, 32), 20 + seed % 30).convert("RGB")
    picture.save(buffer, kind, **({"exif": exif} if orientation != 1 else {}))
    return buffer.getvalue()


def test_photos_in_folders_of_any_script(person: Person) -> None:
    """The photographer: classes in Japanese and Cyrillic, pictures of a phone, a GIF and an MPO among them,
    a NAS's own thumbnails, and files that are no pictures."""
    pets = person.folder / "raw"
    plain = {}
    for name in ("カラス", "кошка", "dog"):
        (pets / name).mkdir(parents=True)
        for number in range(20):
            path = pets / name / f"IMG {number:04d}.jpg"
            path.write_bytes(photo(number, "JPEG", orientation=6 if number % 4 == 0 else 1))
        for number in range(4):
            content = photo(number, "PNG")
            (pets / name / f"scan {number}.png").write_bytes(content)
            plain[content] = name
    (pets / "dog" / "old.gif").write_bytes(photo(1, "GIF"))
    (pets / "dog" / "stereo.mpo").write_bytes(photo(2, "MPO"))
    (pets / "dog" / "notes.docx").write_bytes(b"PK\3\4 notes")
    (pets / "dog" / "@eaDir").mkdir()
    (pets / "dog" / "@eaDir" / "SYNOPHOTO_THUMB.jpg").write_bytes(photo(3, "JPEG"))

    assert "folders' names" in person.types("init", "raw")
    assert "1 file passed over: 1 .docx" in person.types("plan", "configs/raw.yaml")
    built = person.types("build", "configs/raw.yaml")
    assert "74 read = 74 accepted" in built and "1 file passed over: 1 .docx" in built
    person.types("verify", "data/raw")
    person.types("look", "data/raw")

    version = resolve(person.folder / "data/raw")
    splits = read_json(version / "manifest.json")["splits"]
    code = (
        "import json, sys, datasets\n"
        "print(json.dumps({s: d.num_rows for s, d in datasets.load_dataset(sys.argv[1]).items()}))"
    )
    offline = {**person.env, "HF_HUB_OFFLINE": "1", "HF_HOME": str(person.folder / "hf")}
    loaded = subprocess.run(
        [sys.executable, "-c", code, str(version)], env=offline, capture_output=True, text=True, timeout=300
    )
    assert loaded.returncode == 0, loaded.stderr
    assert json.loads(loaded.stdout.splitlines()[-1]) == {
        name: one["samples"] for name, one in splits.items()
    }

    samples = [sample for split in splits for sample in person.samples(split)]
    stored = {content for sample in samples for name, content in sample.items() if name == "png"}
    assert plain.keys() <= stored, "a PNG was encoded again"
    sides = []
    for sample in samples:
        with Image.open(io.BytesIO(next(sample[name] for name in ("jpg", "png") if name in sample))) as image:
            assert image.getexif().get(ORIENTATION, 1) == 1
            sides.append(image.size)
    assert sides.count((32, 48)) == 15, "three classes with five pictures of an upright phone each"
    assert {json.loads(sample["json"])["label"] for sample in samples} == {"カラス", "кошка", "dog"}


def test_the_rows_of_the_real_cauldron(person: Person) -> None:
    """The conversationalist: rows as the_cauldron publishes them, whose turns name their source."""
    picture = raw.png(1, side=40)
    rows = [
        {
            "images": [{"bytes": picture, "path": None}],
            "texts": [{"user": f"What is number {n}?", "assistant": f"It is {n}.", "source": "TQA"}],
        }
        for n in range(60)
    ]
    (person.folder / "raw").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), person.folder / "raw" / "train-00000-of-00001.parquet")
    assert "60 conversations" in person.types("init", "raw")
    assert "60 read = 60 accepted" in person.types("build", "configs/raw.yaml")
    person.types("verify", "data/raw")
    (turn,) = json.loads(person.samples("train")[0]["json"])["messages"]
    assert turn["source"] == "TQA"


def identities(run: Path) -> list[psutil.Process]:
    """The agent, its ranks and whatever shares a session with them."""
    record = read_json(run / "run.json")
    agent = record["attempts"][-1]["pid"]
    ranks = [read_json(path)["pid"] for path in (run / "phases").glob("rank_*.json")]
    sessions = {os.getsid(pid) for pid in (agent, *ranks) if psutil.pid_exists(pid)}
    return [one for one in psutil.process_iter() if _session(one.pid) in sessions]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


@pytest.mark.parametrize("on_crash", ["restart", pytest.param("stop", marks=pytest.mark.proof)])
def test_a_run_that_was_killed_is_named_and_goes_on(person: Person, on_crash: str) -> None:
    """The night shift: everything was killed. `doctor` names it; `status` starts it again, or prints the command
    that does, if the config leaves that to a person."""
    person.types("example", "digits")
    config: dict[str, Any] = {"train.steps": 200, "train.checkpoint_every": 20, "evaluate.every": 200}
    config |= {"loader.workers": 0, "loader.prefetch": 2, "train.on_crash": on_crash}
    pairs = [part for key, value in config.items() for part in ("--set", f"{key}={value}")]
    (person.folder / "digits.yaml").write_text(
        (Path(__file__).parents[2] / "configs/digits-clip.yaml").read_text()
    )
    process = person.start("run", "digits.yaml", *pairs)
    deadline = time.monotonic() + 300
    while not list(person.folder.glob("runs/*/checkpoints/step_*/meta.json")):
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.2)
    (record,) = person.folder.glob("runs/*/run.json")
    run = record.parent
    process.kill()  # first, as the flow would start its agent again
    for one in identities(run):
        one.send_signal(signal.SIGKILL)
    process.communicate(timeout=120)

    assert "process.gone" in person.types("doctor", "--run", run.name, expecting=1)
    shown = person.types("status")
    if on_crash == "restart":
        assert re.search(r"its agent was killed at step \d+ of 200; started again \(1 of \d\)", shown)
        while read_json(record)["state"] != "succeeded":
            assert time.monotonic() < deadline, read_json(record)
            time.sleep(1)
    else:
        (command,) = {line.split("tarmac ", 1)[1] for line in shown.splitlines() if "tarmac resume" in line}
        person.types(*command.split())
    assert read_json(record)["state"] == "succeeded"
    assert [path.parent for path in person.folder.glob("runs/*/run.json")] == [run], (
        "a second run was started"
    )
