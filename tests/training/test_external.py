"""Another trainer's command in the place of a rank: what it is told, followed by, and what is made of its files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from open_clip_train.params import parse_args
from safetensors.torch import load_file
from torch.distributed.run import get_args_parser

from flows.cli import main
from tasks.core import config as configs
from tasks.core.errors import UsageError
from tasks.core.files import write_json
from tasks.core.lock import Lease
from tasks.core.process import Identity, child_environment
from tasks.core.schema import Train
from tasks.dataset.version import versions
from tasks.evaluation.checkpoint import LoadedCheckpoint
from tasks.loader.settings import read_settings
from tasks.models import recipes
from tasks.runs import record
from tasks.runs.checkpoints import list_checkpoints, newest_sound, read_meta
from tasks.runs.data import version_path
from tasks.runs.environment import naming
from tasks.runs.folder import RunFolder
from tasks.runs.metrics import last_step
from tasks.runs.plan import plan
from tasks.trainers import recognise
from tasks.trainers.command import Command
from tasks.training import external, external_command
from tests.conftest import ROOT, digits_config
from tests.training.helpers import PATIENCE_S, rows, set_workers, train_here, wait_for
from tests.training.helpers import make_run as plan_own

SHORT = (
    "train.steps=8",
    "train.checkpoint_every=4",
    "train.log_every=1",
    "train.threads=1",
    "train.batch_size=16",
)
OWN = """
from tasks import BESIDE
import json, os, sys, time
from pathlib import Path
import numpy as np
from safetensors.numpy import save_file
if "fails" in sys.argv:
    sys.exit(3)
train = json.loads(os.environ["TARMAC_TRAIN"])
assert Path(os.environ["TARMAC_DATA"], "manifest.json").is_file()
for step in range(1, train["steps"] + 1):
    print(f"step {step}/{train['steps']} loss: {1 / step:.3f}", flush=True)
    if step % 4 == 0:
        save_file({"module.weight": np.full(2, step, np.float32)},
                  Path(os.environ["TARMAC_OUTPUT"], "checkpoints", f"step_{step}.safetensors"))
    while "hangs" in sys.argv:
        time.sleep(0.1)
"""


def make_run(dataset: Path, folder: Path, *overrides: str, model: dict[str, Any] | None = None) -> RunFolder:
    block = "train={recipe: external, model: %s, batch_size: 16, steps: 8, lr: 1.0e-3, checkpoint_every: 4}"
    given = json.dumps(model or {"name": "tarmac/digits"})
    config = digits_config(folder / "raw", folder, block % given, *SHORT, "evaluate.every=4", *overrides)
    run = plan(config, versions.resolve(dataset))
    set_workers(run, 2)
    return run


def own(folder: Path, *words: str) -> dict[str, Any]:
    script = folder / "own.py"
    script.write_text(OWN)
    (folder / "tasks.py").write_text(
        "# A module of the user's, which has the name of one of Tarmac's.\nBESIDE = True\n"
    )
    return {"command": ["python", str(script), *words]}


def options_of(run: RunFolder) -> Any:
    """The options of open_clip's command, as its own parser reads them."""
    words, name = words_of(run)
    assert name == "open_clip" and words[:3] == [sys.executable, "-m", "open_clip_train.main"]
    return parse_args(words[3:])


def words_of(run: RunFolder) -> tuple[list[str], str]:
    """The words of the command, and whose trainer it starts."""
    config = configs.reload(run.config)
    assert config.train is not None
    output = run.path / "trainer"
    output.mkdir(exist_ok=True)
    version = version_path(record.load_record(run).data[0])
    words, trainer = external_command.command_of(config, version, read_settings(run.loader).workers, output)
    return words, trainer.name


def start(run: RunFolder, agent: Identity | None = None) -> subprocess.Popen[bytes]:
    with (run.path / "rank.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tasks.training.external", str(run.path)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**child_environment(), **({} if agent is None else naming(agent))},
            start_new_session=True,
        )


def finish(run: RunFolder) -> int:
    return start(run).wait(PATIENCE_S)


def log_of(run: RunFolder) -> str:
    return (run.path / "rank.log").read_text()


def test_open_clip_is_told_of_data_model_and_the_whole_train_block(
    digits_dataset: Path, tmp_path: Path
) -> None:
    args = options_of(make_run(digits_dataset, tmp_path))
    version = versions.resolve(digits_dataset)
    assert args.train_data == f"{version}/train/{{000000..000007}}.tar" and args.train_num_samples == 64
    assert args.val_data.startswith(f"{version}/val/") and args.val_num_samples > 200
    assert (args.epochs, args.batch_size, args.workers, args.seed) == (2, 16, 2, 0)
    assert args.model.startswith("local-dir:") and args.resume == "latest" and args.name == "trainer"
    described = json.loads(
        (Path(args.model.removeprefix("local-dir:")) / "open_clip_config.json").read_text()
    )
    assert described["model_cfg"]["vision_cfg"]["image_size"] == 32


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [
        ("train.lr=0.5", "lr", 0.5),
        ("train.warmup=3", "warmup", 3),
        ("train.schedule=constant", "lr_scheduler", "const"),
        ("train.weight_decay=0.5", "wd", 0.5),
        ("train.grad_clip=2", "grad_clip_norm", 2.0),
        ("train.precision=bf16", "precision", "amp_bf16"),
        ("train.seed=7", "seed", 7),
        ("train.micro_batch=4", "accum_freq", 4),
        ("train.log_every=3", "log_every_n_steps", 3),
        ("train.checkpoint_every=2", "epochs", 4),
        ("train.model.loss=siglip", "siglip", True),
        ("train.model.image_size=16", "force_image_size", [16]),
        ("train.model.patch_dropout=0.5", "force_patch_dropout", 0.5),
    ],
)
def test_each_key_comes_to_the_command(
    digits_dataset: Path, tmp_path: Path, override: str, name: str, value: Any
) -> None:
    assert getattr(options_of(make_run(digits_dataset, tmp_path, override)), name) == value


def test_an_option_of_the_command_wins(digits_dataset: Path, tmp_path: Path) -> None:
    command = ["python", "-m", "open_clip_train.main", "--lr", "0.25", "--grad-checkpointing"]
    args = options_of(make_run(digits_dataset, tmp_path, model={"name": "ViT-B-32", "command": command}))
    assert args.lr == 0.25 and args.grad_checkpointing and args.model == "ViT-B-32"


ON_CPU = """
import sys, torch
class Spread(torch.nn.parallel.DistributedDataParallel):
    def __init__(self, model, device_ids=None, **others):  # it names the CPU, which DDP refuses
        super().__init__(model, **others)
torch.nn.parallel.DistributedDataParallel = Spread
from open_clip_train.main import main
main(sys.argv[1:])
"""
TORCHRUN = ["torchrun", "--standalone", "--nproc_per_node=2", "-m", "open_clip_train.main"]


def test_ranks_that_a_launcher_starts_share_a_batch(digits_dataset: Path, tmp_path: Path) -> None:
    """The trainer takes a batch per rank, and a launcher the options of its program for its own."""
    model = {"name": "tarmac/digits", "command": [*TORCHRUN, "--grad-checkpointing"]}
    run = make_run(digits_dataset, tmp_path, "train.micro_batch=4", model=model)
    words, name = words_of(run)
    behind = words.index("open_clip_train.main") + 1
    assert name == "open_clip" and words[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert words[behind] == "--", "or torchrun refuses --logs as short for its --logs-specs"
    assert get_args_parser().parse_args(words[3:]).training_script == "open_clip_train.main"
    args = parse_args(words[behind + 1 :])
    assert args.grad_checkpointing and (args.batch_size, args.accum_freq) == (4, 2)
    assert args.train_num_samples == 64 and args.epochs == 2, "4 steps of 16 samples over both ranks"
    set_workers(run, 8)
    words, _ = words_of(run)
    assert parse_args(words[behind + 1 :]).workers == 4, "8 shards for two ranks"


def test_torchrun_starts_the_ranks_that_the_engine_asks_for(digits_dataset: Path, tmp_path: Path) -> None:
    """The same words as with torchrun in the command."""
    own = {"name": "tarmac/digits", "command": TORCHRUN}
    plain = {"name": "tarmac/digits", "command": ["python", *TORCHRUN[3:]]}
    launched, started = (
        words_of(make_run(digits_dataset, tmp_path, "engine={train: {ranks: 2}}", model=model))
        for model in (own, plain)
    )
    assert launched[0][:6] == started[0][:6] and "--nproc_per_node=2" in started[0]
    assert parse_args(started[0][started[0].index("--") + 1 :]).batch_size == 8


RANKED = """
import os, torch, json
from torch import distributed, nn
from safetensors.torch import save_file

distributed.init_process_group("gloo")
rank = distributed.get_rank()
model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, json.loads(os.environ["TARMAC_TRAIN"])["steps"] + 1):
    loss = (model(torch.ones(4, 2) * (rank + 1)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print(f"step {step} loss: {float(loss):.4f} of {distributed.get_world_size()}", flush=True)
if rank == 0:
    folder = os.path.join(os.environ["TARMAC_OUTPUT"], "checkpoints")
    os.makedirs(folder, exist_ok=True)
    save_file(model.module.state_dict(), os.path.join(folder, f"step_{step}.safetensors"))
distributed.destroy_process_group()
os._exit(0)  # a thread of DDP's that still wants Python while it shuts down aborts the process
"""


@pytest.mark.proof
def test_a_script_with_ddp_trains_on_the_ranks_that_the_engine_asks_for(
    digits_dataset: Path, tmp_path: Path
) -> None:
    (tmp_path / "ranked.py").write_text(RANKED)
    model = {"command": ["python", str(tmp_path / "ranked.py")]}
    run = make_run(digits_dataset, tmp_path, "engine={train: {ranks: 2}}", "evaluate=null", model=model)
    assert finish(run) == 0, log_of(run)
    assert "of 2" in log_of(run) and run.checkpoint(8).is_dir()


@pytest.mark.proof
def test_open_clips_trainer_comes_as_far_as_it_does_without_a_gpu(
    digits_dataset: Path, tmp_path: Path
) -> None:
    """Its two ranks meet and share the batch; then it gives DDP a device's number, which a CPU has not."""
    command = ["python", "-m", "open_clip_train.main", "--dist-backend", "gloo"]
    model = {"name": "tarmac/digits", "command": command}
    run = make_run(digits_dataset, tmp_path, "engine={train: {ranks: 2}}", "evaluate=null", model=model)
    assert finish(run) == 1
    said = log_of(run)
    assert "|   world_size: 2" in said and "|   batch_size: 8" in said
    assert "DistributedDataParallel device_ids" in said


@pytest.mark.parametrize(
    ("command", "keys", "says"),
    [
        (
            ["/opt/trainer/start"],
            ["engine={train: {gpus: 2}}"],
            "engine.train.gpus: asks for 2 ranks, and train.model.command makes 1; only a command that begins "
            "with python gets torchrun before it, as python, -m, open_clip_train.main does",
        ),
        (TORCHRUN, ["engine={train: {ranks: 4}}", "train.batch_size=16"], "engine.train.ranks: asks for 4"),
        (
            TORCHRUN,
            ["train.batch_size=15"],
            "train.batch_size: 15 samples cannot be divided evenly among 2 ranks",
        ),
        (
            [*TORCHRUN, "--batch-size", "16"],
            [],
            "train.batch_size: a step has 16 samples, and the command's --batch-size 16, which is per rank and "
            "pass, makes 32",
        ),
        (
            ["torchrun", "--nproc_per_node=gpu", "t.py"],
            [],
            "how many ranks it starts is left to the launcher",
        ),
    ],
)
def test_ranks_that_nobody_starts_are_refused_by_plan(
    command: list[str],
    keys: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "digits.yaml"
    config = digits_config(tmp_path / "raw", tmp_path, "train.recipe=external", *SHORT, "evaluate.every=4")
    path.write_text(configs.dump(config))
    model = json.dumps({"name": "tarmac/digits", "command": command})
    sets = [word for key in (f"train.model={model}", *keys) for word in ("--set", key)]
    assert main(["plan", str(path), *sets]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and says in said


@pytest.mark.system
@pytest.mark.proof
def test_open_clips_trainer_on_two_ranks(digits_dataset: Path, tmp_path: Path) -> None:
    """By torchrun, on the CPU: it takes the steps that the config counts, of the samples that it counts."""
    script = tmp_path / "on_cpu.py"
    script.write_text(ON_CPU)
    model = {"name": "tarmac/digits", "trainer": "open_clip", "command": [*TORCHRUN[:3], str(script)]}
    run = make_run(
        digits_dataset, tmp_path, "train.micro_batch=null", "engine={train: {ranks: 2}}", model=model
    )
    assert finish(run) == 0, log_of(run)
    assert "world_size: 2" in log_of(run) and "batch_size: 8" in log_of(run)
    assert list(rows(run, "train")) == list(range(1, 9)), "each step once, and no step of an epoch skipped"
    assert [one.step for one in list_checkpoints(run)] == [4, 8] and last_step(run.metrics) == 8


def test_mobileclips_fork_is_known_by_its_option_or_by_name(digits_dataset: Path, tmp_path: Path) -> None:
    script = {"name": "ViT-B-16", "trainer": "mobileclip", "command": ["bash", "/jobs/train.sh"]}
    words, name = words_of(make_run(digits_dataset, tmp_path / "script", model=script))
    assert name == "MobileCLIP" and "--dataset-reinforcement" in words
    assert not any(word.startswith("--val-") for word in words), (
        "its validation cannot read what it trains on"
    )
    assert words[:2] == ["bash", "/jobs/train.sh"] and words[words.index("--model") + 1] == "ViT-B-16"
    flags = ["--dataset-reinforcement", "--distill-logit-scale", "100"]
    command = {"name": "ViT-B-16", "command": ["python", "-m", "open_clip_train.main", *flags]}
    words, name = words_of(make_run(digits_dataset, tmp_path / "option", model=command))
    assert name == "MobileCLIP" and words.count("--dataset-reinforcement") == 1 and "--train-data" in words
    from_sources = Command.of(["python", "-m", "src.open_clip_train.main", *flags])
    assert recognise(from_sources).name == "MobileCLIP", "as in its own scripts"


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"ema": 0.9}, r"^train\.ema: is not passed on to a command"),
        ({"freeze": ["vision"]}, "train.freeze: a model of recipe external has no part 'vision'"),
        (
            {"steps": 9},
            "checkpoint_every: 4 steps are an epoch to the trainer, and steps \\(9\\) is no multiple",
        ),
        (
            {"model": {"name": "tarmac/digits", "pretrained": "openai"}},
            "pretrained: open_clip's trainer takes",
        ),
        (
            {"model": {"name": "tarmac/digits", "augment": {"scale": [0.5, 1]}}},
            "augment: give it as an option",
        ),
        (
            {"model": {"name": "tarmac/digits", "trainer": "mobileclip"}},
            "^train.model: MobileCLIP's fork takes models by open_clip's names only",
        ),
    ],
)
def test_what_a_command_is_not_told_is_refused(keys: dict[str, Any], says: str) -> None:
    usual = {
        "recipe": "external",
        "model": {"name": "tarmac/digits"},
        "batch_size": 16,
        "steps": 8,
        "lr": 0.1,
    }
    with pytest.raises(UsageError, match=says):
        recipes.check_recipe(Train.model_validate({**usual, "checkpoint_every": 4, **keys}))


def test_nothing_judges_a_model_that_is_not_described(tmp_path: Path) -> None:
    usual = {"recipe": "external", "batch_size": 16, "steps": 8, "lr": 0.1, "checkpoint_every": 4}
    gives = [
        recipes.check_recipe(Train.model_validate({**usual, "model": model})).gives
        for model in (own(tmp_path), {**own(tmp_path), "name": "tarmac/digits"})
    ]
    assert [sorted(one) for one in gives] == [[], ["embed", "loss"]]


def test_a_command_of_ones_own_is_followed_by_its_log_and_files(digits_dataset: Path, tmp_path: Path) -> None:
    run = make_run(digits_dataset, tmp_path, "evaluate=null", model=own(tmp_path))
    assert finish(run) == 0, log_of(run)
    assert {step: row["train/loss"] for step, row in rows(run, "train").items()} == {
        step: pytest.approx(1 / step, abs=1e-3) for step in range(1, 9)
    }
    newest = newest_sound(run)
    assert newest is not None and [one.step for one in list_checkpoints(run)] == [4, 8]
    assert list(load_file(newest.path / "model.safetensors")) == ["weight"], "without DDP's prefix"
    assert run.latest.resolve() == newest.path.resolve() and last_step(run.metrics) == 8


@pytest.mark.parametrize("written", [0, 1, 700])
def test_what_a_killed_trainer_had_begun_to_write_is_set_aside(written: int, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for epoch in (1, 2, 3):
        torch.save(
            {"epoch": epoch, "state_dict": {"module.weight": torch.ones(3)}}, folder / f"epoch_{epoch}.pt"
        )
    os.truncate(folder / "epoch_3.pt", written)
    external.set_torn_aside(tmp_path, 4, {4})
    assert sorted(path.name for path in folder.iterdir()) == ["epoch_1.pt", "epoch_2.pt", "epoch_3.pt.torn"]
    assert [step for step, _ in external.saved(tmp_path, 4)] == [4, 8]


@pytest.mark.system
def test_its_exit_code_is_the_ranks(digits_dataset: Path, tmp_path: Path) -> None:
    run = make_run(digits_dataset, tmp_path, "evaluate=null", model=own(tmp_path, "fails"))
    assert finish(run) == 3


@pytest.mark.system
@pytest.mark.parametrize(
    ("way", "code"),
    [("stop", 0), ("starter", 1), ("slurm", 0), ("killed", -signal.SIGKILL), ("taken over", 1)],
)
def test_the_command_ends_with_the_run(digits_dataset: Path, tmp_path: Path, way: str, code: int) -> None:
    run = make_run(digits_dataset, tmp_path, "evaluate=null", model=own(tmp_path, "hangs"))
    with Lease(run.lease) as lease:
        process = start(run, lease.identity)
        wait_for(lambda: "step 1/8" in log_of(run), process, run)
        if way == "stop":
            run.stop.write_text("enough")
        elif way == "starter":
            assert process.stdin is not None
            process.stdin.close()
        elif (
            way == "slurm"
        ):  # whose signal to all processes reaches the command before the agent's order comes
            os.killpg(process.pid, signal.SIGTERM)
            wait_for(lambda: all(map(is_dead, psutil.Process(process.pid).children())), process, run)
            run.stop.write_text("Slurm ended its job")
        elif way == "killed":
            process.kill()
        else:
            write_json(run.lease, {**lease.identity.to_json(), "host": "elsewhere", "since": 0.0})
        assert process.wait(PATIENCE_S) == code, log_of(run)
        deadline = time.monotonic() + PATIENCE_S
        while group_is_alive(process.pid):
            assert time.monotonic() < deadline, "the command lives on"
            time.sleep(0.05)


def is_dead(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def group_is_alive(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.system
def test_open_clips_trainer_killed_goes_on_and_its_checkpoints_are_judged(
    digits_dataset: Path, tmp_path: Path
) -> None:
    steps = range(4, 49, 4)  # so many, as an epoch can take less than half a second
    run = make_run(digits_dataset, tmp_path, f"train.steps={steps[-1]}")
    saved = run.path / "trainer/checkpoints"
    process = start(run)
    deadline = time.monotonic() + PATIENCE_S
    while not (saved / "epoch_2.pt").exists():  # so that the first is whole; the second may be torn
        assert process.poll() is None and time.monotonic() < deadline, log_of(run)
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (saved / f"epoch_{len(steps)}.pt").exists(), "it was too fast to be disturbed"
    assert finish(run) == 0, log_of(run)
    assert "resuming checkpoint" in log_of(run)
    assert [one.step for one in list_checkpoints(run)] == [*steps]
    losses = rows(run, "val")
    meta = read_meta(list_checkpoints(run)[-1])
    assert meta is not None and meta.val_loss == pytest.approx(losses[steps[-1]]["val/loss"], abs=1e-6)
    assert set(rows(run, "train")) >= {*steps}
    subject = LoadedCheckpoint.open(run, configs.reload(run.config), steps[-1])
    assert subject.embed_texts(["a photo of a seven"]).shape == (1, 64)


@pytest.mark.proof
def test_our_own_loop_learns_as_open_clips_does(digits_dataset: Path, tmp_path: Path) -> None:
    """The same shards, model, batches and schedule with three seeds each: the curves of the loss lie no farther
    apart than those of one trainer do, or than a few hundredths. open_clip's own differ from run to run of one
    seed, by up to 0.2."""
    window, steps = 20, 120
    keys = (f"train.steps={steps}", f"train.checkpoint_every={steps}", "train.log_every=1", "train.threads=1")
    same = (*keys, "train.batch_size=64", "train.warmup=20", "train.lr=1.0e-3", "evaluate=null")
    curves: dict[str, list[Any]] = {"own": [], "open_clip": []}
    for seed in (0, 1, 2):
        own_run = plan_own(digits_dataset, tmp_path / f"own {seed}", *same, f"train.seed={seed}")
        assert train_here(own_run) == steps
        other = make_run(digits_dataset, tmp_path / f"other {seed}", *same, f"train.seed={seed}")
        assert finish(other) == 0, log_of(other)
        for name, run in (("own", own_run), ("open_clip", other)):
            losses = [row["train/loss"] for _, row in sorted(rows(run, "train").items())]
            assert len(losses) == steps
            curves[name].append(np.array(losses).reshape(-1, window).mean(axis=1))
    noise = np.maximum(*(np.ptp(of_one, axis=0) for of_one in curves.values())) + 0.05
    apart = np.abs(np.mean(curves["own"], axis=0) - np.mean(curves["open_clip"], axis=0))
    print(curves)
    assert (apart <= noise).all(), (apart, noise)
    assert curves["own"][0][-1] < curves["own"][0][0] - 1
