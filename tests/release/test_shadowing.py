"""Every command does its work in a folder whose own modules are named like Tarmac's, and the trainer in it gets its own.

`tasks` and `flows` are names that a project may have too. Each command runs as installed from the wheel, in a
project that has both: `flows` raises as soon as anybody imports it, and `tasks` keeps the command line of every
process that does, but for the project's own trainer. The calls are one story: each takes what those before it made.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from flows.cli import app
from tests.release.built import build, copy_checkout, install_beside, plain_environment
from tests.services import environment, free_port, prefect_server, until

pytestmark = pytest.mark.proof  # six minutes each way

TASKS = """\
import pathlib, sys
OWNER = "the project"
if pathlib.Path(sys.argv[0]).name != "train.py":
    with open(pathlib.Path(__file__).with_name("imported.txt"), "a") as file:
        print(*sys.orig_argv, file=file)
def prepare(image):
    import numpy, torch
    return torch.from_numpy(numpy.array(image)).float()
"""
TRAIN = """\
import os, sys, time
import torch, webdataset
import tarmac_helpers, tasks
print("the trainer has", tasks.OWNER, tarmac_helpers.OWNER, flush=True)
def shapes():
    shards = webdataset.WebDataset("data/digits/current/train/{000000..000001}.tar", shardshuffle=False)
    return shards.decode("pil").to_tuple("png", "txt").map_tuple(tasks.prepare, str)
if __name__ == "__main__":
    steps = int(os.environ.get("STEPS", 20))
    for step, (images, _) in enumerate(torch.utils.data.DataLoader(shapes().repeat(), batch_size=8, num_workers=1)):
        if step == steps:
            break
        print(f"step {step} loss {1 / (step + 1):.4f}", flush=True)
        time.sleep(0.05)
"""
CONFIG = """\
name: digits
dataset:
  output: data/digits
  modality: image_text
  source: {kind: table, path: data/raw/digits/some.csv, image: file, caption: caption}
  shard: {samples: 64}
  splits: {val: 0.2}
train:
  recipe: clip
  model: {name: tarmac/digits}
  batch_size: 16
  steps: 4
  lr: 1.0e-3
  checkpoint_every: 2
loader: {workers: 1, prefetch: 2}
evaluate: {every: 4, tasks: [zero_shot]}
engine: {build: {kind: local, workers: 1}}
"""
SCORE = "score: {model: {name: tarmac/digits, pretrained: judge.safetensors}}\n"
TAUGHT = """\
name: taught
dataset: {output: data/taught, modality: reinforced, source: {kind: shards, path: data/tars}}
reinforce:
  dataset: data/digits
  teachers: [{name: tarmac/digits, pretrained: judge.safetensors}]
  augmentations: 2
  captions: synthetic.jsonl
"""
SAMPLES = 320


@dataclass(frozen=True)
class Call:
    """A command line in a project; `{run}` and `{other}` are its two runs, `{key}` a sample's key."""

    words: str
    shows: str
    """A regular expression that its output matches when it has done its work."""
    code: int = 0

    @property
    def command(self) -> str:
        return self.words.split()[0]


OPEN_CLIP = (
    "python -m open_clip_train.main --model tarmac --dataset-type webdataset --batch-size 16 --workers 1 "
    "--train-data data/digits/current/train/{{000000..000001}}.tar --train-num-samples 120"
)
CALLS = [
    Call("example digits", "1,797 samples in data/raw/digits"),
    Call(
        "init data/raw/digits --out found/digits.yaml", "✓ found/digits.yaml: a table of images and captions"
    ),
    Call("explain dataset.splits", "How samples are divided into splits"),
    Call("schema", r'"\$defs"'),
    Call("plan configs/digits.yaml", f"{SAMPLES}"),
    Call("build configs/digits.yaml", f"{SAMPLES} read = {SAMPLES} accepted"),
    Call("fetch configs/digits.yaml", "✓ nothing to fetch"),
    Call("preflight configs/digits.yaml", "✓ every worker of every rank gets a batch"),
    Call("bench configs/digits.yaml", "✓ 1 worker .*samples/s"),
    Call("train configs/digits.yaml", "✓ train     4 steps"),
    Call("run configs/digits.yaml --set train.seed=1", "✓ train     4 steps"),
    Call("evaluate {run} --step 4 --task zero_shot", "✓ evaluate  1 checkpoint, 1 of 1 results"),
    Call("verify data/digits --full", "is sound at level full"),
    Call("repair data/digits --shard 0", "✓ repaired 1 shard"),
    Call("look data/digits", "data/digits/look.html"),
    Call("rejects data/digits", "no sample was rejected"),
    Call("trace {key} data/digits", "shard +train/"),
    Call("versions data/digits", f"→ [0-9a-f]+ .*{SAMPLES} samples"),
    Call("index data/digits/current/train data/indexed", "data/indexed is version"),
    Call("reinforce taught.yaml", "✓ reinforce"),
    Call("score configs/scored.yaml", f"{SAMPLES} samples scored"),
    Call("status", "✓ {run}  succeeded  4/4"),
    Call("logs {run}", "step 4: loss"),
    Call("cancel {run}", "is not running"),
    Call("resume {run}", "✓ pipeline  up to date"),
    Call("gather {run} {other}", "2 runs: 2 gathered"),
    Call("report {run}", "runs/{run}/report.html"),
    Call("compare {run} {other}", "train.seed  0 +1"),
    Call("export {run} --to open_clip", "✓ export    {run}, step 4"),
    Call("forget {other} --yes", "✓ removed {other}"),
    Call(f"preflight -- {OPEN_CLIP}", "✓ every worker of every rank gets a batch(?s:.*)samples of 2 shards"),
    Call("preflight -- python train.py", "no trainer that Tarmac knows", code=2),
    Call("doctor --log trained.log", "VERDICT  worker.killed", code=1),
    Call("watch -- python train.py", "the trainer has the project the project's helpers(?s:.*)it ended well"),
    Call("deploy --write deployments.yaml", "✓ deployments.yaml: 5 deployments"),
]


@pytest.fixture(scope="module")
def tarmac(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console script, installed from the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    return install_beside(build("wheel", copy_checkout(folder / "source"), folder), folder / "environment")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The settings of a Prefect server, which the commands of both projects share."""
    home = tmp_path_factory.mktemp("server")
    env = environment(home, free_port())
    with prefect_server(env, home / "server.log"):
        yield {name: env[name] for name in ("PREFECT_API_URL",)}


class ShadowingProject:
    """A folder with modules of its own, and `tarmac` as its owner calls it there."""

    def __init__(self, path: Path, tarmac: Path, env: dict[str, str]) -> None:
        self.path, self.script = path, tarmac
        self.env = {**env, "PATH": f"{tarmac.parent}{os.pathsep}{env['PATH']}"}
        for name, text in {
            "tasks.py": TASKS,
            "flows/__init__.py": "raise RuntimeError('Tarmac has imported the project’s own flows')\n",
            "tarmac_helpers.py": 'OWNER = "the project\'s helpers"\n',
            "train.py": TRAIN,
            "trained.log": "step 1 loss 0.5\nRuntimeError: DataLoader worker (pid 26694) is killed by signal: Killed.\n",
            "configs/digits.yaml": CONFIG,
            "configs/scored.yaml": CONFIG + SCORE,
            "taught.yaml": TAUGHT,
        }.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)

    def call(self, words: str, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
        """`tarmac` with these words."""
        return subprocess.run(
            [str(self.script), *words.split()],
            cwd=self.path,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )

    def names(self) -> dict[str, str]:
        """What the words of a call may name: the run with seed 0 and the one with seed 1, and a sample's key."""
        runs = {}
        for file in self.path.glob("runs/*/config.yaml"):
            runs["other" if re.search(r"^ +seed: 1$", file.read_text(), re.MULTILINE) else "run"] = (
                file.parent.name
            )
        return {"key": "digit_0001", "run": "", "other": "", **runs}

    def is_left_alone(self) -> None:
        """Assert that nothing but the trainer has imported the project's modules."""
        imported = self.path / "imported.txt"
        by = imported.read_text() if imported.exists() else ""
        imported.unlink(missing_ok=True)
        assert not by, by

    def prepare(self, command: str) -> None:
        """Make what a command takes that no command of Tarmac makes."""
        table = self.path / "data/raw/digits/some.csv"
        if command == "plan":
            lines = table.with_name("captions.csv").read_text().splitlines(keepends=True)
            table.write_text("".join(lines[: SAMPLES + 1]))
        if command == "reinforce":
            (weights,) = self.path.glob(f"runs/{self.names()['run']}/checkpoints/step_*4/model.safetensors")
            (self.path / "judge.safetensors").write_bytes(weights.read_bytes())
            keys = [line.partition(".png")[0] for line in table.read_text().splitlines()[1:]]
            lines = [json.dumps({"key": key, "captions": [f"the digit {key}"]}) + "\n" for key in keys]
            (self.path / "synthetic.jsonl").write_text("".join(lines))


@pytest.fixture(scope="module", params=["PYTHONPATH=.", "as installed"])
def project(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    tarmac: Path,
    server: dict[str, str],
) -> ShadowingProject:
    folder = tmp_path_factory.mktemp("project")
    env = {**plain_environment(folder / "home"), **server}
    if request.param == "PYTHONPATH=.":
        env["PYTHONPATH"] = "."
    (folder / "home").mkdir()
    return ShadowingProject(folder / "work", tarmac, env)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.words)
def test_every_command_does_its_work(project: ShadowingProject, call: Call) -> None:
    project.prepare(call.command)
    names = project.names()
    done = project.call(call.words.format(**names))
    assert done.returncode == call.code, done.stdout[-3000:]
    for name, value in names.items():
        call = replace(call, shows=call.shows.replace(f"{{{name}}}", value))
    assert re.search(call.shows, done.stdout), done.stdout[-3000:]
    project.is_left_alone()


def test_a_server_and_a_worker_run_flows_there(project: ShadowingProject) -> None:
    port = free_port()
    env = {
        **project.env,
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_HOME": str(project.path / "up"),
    }
    log = project.path / "up.log"
    with log.open("w") as out:
        up = subprocess.Popen(
            [project.script, "up", "--port", str(port)], cwd=project.path, env=env, stdout=out, stderr=out
        )
    try:
        until("the worker", lambda: "✓ worker" in log.read_text() or up.poll() is not None, 120)
        assert up.poll() is None, log.read_text()
        words = [
            "deployment",
            "run",
            f"verify/{project.path.name}",
            "--param",
            "dataset=data/digits",
            "--watch",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *words],
            cwd=project.path.parent,
            env={name: value for name, value in env.items() if name != "PYTHONPATH"},
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stdout + done.stderr + log.read_text()
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(60) in (0, 130), log.read_text()
    project.is_left_alone()


def test_no_command_is_forgotten() -> None:
    """`up` has a test of its own above."""
    assert {call.command for call in CALLS} | {"up"} == {name for name in app if not name.startswith("-")}
