"""`tarmac watch`: what passes through it, when it looks, and how it judges the end."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from flows import cli
from tasks.diagnosis import examination, rhythm
from tasks.diagnosis.rhythm import Rhythm
from tasks.diagnosis.verdicts import judge
from tasks.trainers.contract import Progress
from tests.diagnosis.test_verdicts import observation
from tests.stalls.open_clip import NO_CAPTIONS, command, write_shards

TARMAC = [sys.executable, "-m", "flows.cli", "watch"]


def watched(
    folder: Path, *words: str, options: tuple[str, ...] = (), timeout_s: float = 300
) -> subprocess.CompletedProcess[bytes]:
    """The command under `tarmac watch`; both end with the test."""
    with subprocess.Popen(
        [*TARMAC, *options, "--", *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            for one in psutil.Process(process.pid).children(recursive=True):
                one.kill()
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def script(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", textwrap.dedent(text))


def trainer(folder: Path, text: str) -> tuple[str, ...]:
    """A command that is open_clip's by its name, and does something else."""
    (folder / "open_clip_train").mkdir()
    (folder / "open_clip_train/__init__.py").touch()
    (folder / "open_clip_train/main.py").write_text(textwrap.dedent(text))
    return (sys.executable, "-m", "open_clip_train.main", "--name", "a")


def test_output_and_exit_code_pass_through_untouched(tmp_path: Path) -> None:
    done = watched(
        tmp_path,
        *script(
            """
            import os, sys
            os.write(1, b"a\\r\\xff\\x00b\\nno end")
            os.write(2, b"err\\r50%\\n")
            sys.exit(7)
            """
        ),
    )
    assert done.returncode == 7
    assert done.stdout == b"a\r\xff\x00b\nno end"
    assert done.stderr.startswith(b"err\r50%\n")
    assert b"exit code 7" in done.stderr


def test_death_by_a_signal_is_the_exit_code_of_a_shell(tmp_path: Path) -> None:
    done = watched(tmp_path, *script("import os; os.kill(os.getpid(), 9)"))
    assert done.returncode == 137
    assert b"process.gone      the command was ended by SIGKILL" in done.stderr


def test_the_rank_that_failed_is_named_at_the_end(tmp_path: Path) -> None:
    """Behind the traceback of another rank, whose connection it closed, and that of the launcher."""
    log = """
        [rank2]: Traceback (most recent call last):
        [rank2]:   File "/here/train.py", line 7, in step
        [rank2]: RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:3724
        [rank1]: Traceback (most recent call last):
        [rank1]:   File "/here/train.py", line 5, in load
        [rank1]: ValueError: no such label: 7
        Traceback (most recent call last):
          File "/env/bin/torchrun", line 10, in <module>
        torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
        """
    code = f"import sys, textwrap; print(textwrap.dedent({log!r})); sys.exit(1)"
    done = watched(tmp_path, *script(code))
    assert done.returncode == 1
    said = done.stderr.decode()
    assert "✗ process.failed    rank 1 raised ValueError: no such label: 7, in load (here/train.py:5)" in said
    assert "desync" not in said


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_command_once(tmp_path: Path, sign: signal.Signals) -> None:
    command = script(
        f"""
        import signal, sys, time
        got = []
        signal.signal({int(sign)}, lambda *_: got.append(1))
        print("ready", flush=True)
        until = time.monotonic() + 60
        while not got and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(1)
        print(len(got))
        sys.exit(5)
        """
    )
    with subprocess.Popen(
        [*TARMAC, "--", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(sign)
        assert process.stdout.read() == b"1\n"
        assert process.wait() == 5


def test_on_a_terminal_the_command_has_one_and_ctrl_c_reaches_it(tmp_path: Path) -> None:
    command = script(
        """
        import sys, time
        try:
            print(sys.stdout.isatty(), sys.stderr.isatty(), flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            sys.exit(3)
        """
    )
    pid, outer = pty.fork()
    if not pid:
        os.chdir(tmp_path)
        os.execv(sys.executable, [*TARMAC, "--", *command])
    text = b""
    while b"True True\r\n" not in text:
        text += os.read(outer, 1000)
    os.write(outer, b"\x03")
    while True:
        try:
            text += os.read(outer, 1000)
        except OSError:
            break
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert text.count(b"interrupted\r\n") == 1


GOES_ON = """
import os, sys, time
print(sys.stdout.isatty(), flush=True)
while not os.path.exists("watch_is_dead"):
    print("step", flush=True)
    time.sleep(0.05)
for _ in range(3000):
    print("afterwards" * 10, flush=True)
print("error", file=sys.stderr, flush=True)
open("trained", "w").close()
"""


def patiently(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_killed_itself_it_leaves_the_training_at_work_and_its_output_arriving(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as to, err.open("wb") as beside:
        process = subprocess.Popen([*TARMAC, "--", *script(GOES_ON)], cwd=tmp_path, stdout=to, stderr=beside)
    patiently(lambda: b"step" in out.read_bytes())
    process.kill()
    process.wait()
    (tmp_path / "watch_is_dead").touch()
    patiently((tmp_path / "trained").exists)
    patiently(lambda: err.read_bytes() == b"error\n")
    patiently(lambda: out.read_bytes().count(b"afterwards") == 30_000)


def test_killed_on_a_terminal_it_leaves_the_training_at_work_and_its_output_arriving(tmp_path: Path) -> None:
    shell = 'echo $$; "$@" & wait; read line'
    pid, outer = pty.fork()
    if not pid:
        os.chdir(tmp_path)
        os.execv("/bin/sh", ["sh", "-c", shell, "sh", *TARMAC, "--", *script(GOES_ON)])
    text = bytearray()
    reader = threading.Thread(target=_read_all, args=(outer, text), daemon=True)
    reader.start()
    patiently(lambda: b"True\r\nstep" in text)
    (watch,) = psutil.Process(pid).children()
    watch.kill()
    (tmp_path / "watch_is_dead").touch()
    patiently((tmp_path / "trained").exists)
    patiently(lambda: text.count(b"afterwards") == 30_000 and b"error\r\n" in text)
    os.write(outer, b"\n")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    reader.join(60)
    os.close(outer)


def _read_all(descriptor: int, text: bytearray) -> None:
    with suppress(OSError):
        while part := os.read(descriptor, 1 << 16):
            text += part


def test_while_it_is_stopped_the_training_goes_on(tmp_path: Path) -> None:
    """More than its pipes hold comes while it does not listen."""
    out = tmp_path / "out"
    with out.open("wb") as to:
        process = subprocess.Popen(
            [*TARMAC, "--", *script(GOES_ON)], cwd=tmp_path, stdout=to, stderr=subprocess.DEVNULL
        )
    patiently(lambda: b"step" in out.read_bytes())
    process.send_signal(signal.SIGSTOP)
    (tmp_path / "watch_is_dead").touch()
    patiently((tmp_path / "trained").exists)
    process.send_signal(signal.SIGCONT)
    assert process.wait(120) == 0
    assert out.read_bytes().count(b"afterwards") == 30_000


def test_a_training_without_a_step_did_not_succeed(tmp_path: Path) -> None:
    done = watched(tmp_path, *trainer(tmp_path, "print('| Start epoch 0')"))
    assert done.returncode == 1
    assert b"run.no_batches    it ended with exit code 0 without a single step" in done.stderr


def test_a_failure_within_a_thread_leaves_a_doubt(tmp_path: Path) -> None:
    """Python ends with 0 where the loop that trains ran in a thread."""
    done = watched(
        tmp_path,
        *script(
            """
            import threading
            def train():
                print("step 1 loss 0.5", flush=True)
                raise RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")
            thread = threading.Thread(target=train); thread.start(); thread.join()
            """
        ),
    )
    assert done.returncode == 0
    assert (
        b"! worker.crashed    RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly" in done.stderr
    )
    assert b"! watch: it ended, and leaves a doubt (worker.crashed): exit code 0" in done.stderr


def test_json_is_one_object_and_the_output_goes_beside_it(tmp_path: Path) -> None:
    command = trainer(tmp_path, "print('hello')")
    done = watched(tmp_path, *command, options=("--json",))
    printed = json.loads(done.stdout)
    assert (printed["ok"], printed["exit_code"], printed["trainer"], printed["steps"]) == (
        False,
        1,
        "open_clip",
        0,
    )
    assert [one["code"] for one in printed["findings"]] == ["run.no_batches"]
    assert done.stderr == b"hello\n"


def test_an_experiment_that_exists_already_did_not_train(tmp_path: Path) -> None:
    line = "Error. Experiment already exists. Use --name {} to specify a new experiment."
    done = watched(tmp_path, *trainer(tmp_path, f"print({line!r})"))
    assert done.returncode == 1
    assert b"Experiment already exists" in done.stderr and b"--resume latest" in done.stderr


STEP = "Train Epoch: 0 [64/64 (100%)] Data (t): 0.1 Batch (t): 0.3, LR: 0.1 Logit Scale: 1 Loss: {loss} (1)"


def test_a_last_loss_that_is_no_number_is_a_failure_and_one_that_is_success(tmp_path: Path) -> None:
    text = f"""
        import os, sys
        os.makedirs("logs/a/checkpoints", exist_ok=True)
        open("logs/a/checkpoints/epoch_1.pt", "w").close()
        print({STEP!r}.replace("{{loss}}", os.environ["LOSS"]), file=sys.stderr)
        """
    command = trainer(tmp_path, text)
    failed = subprocess.run(
        [*TARMAC, "--", *command],
        cwd=tmp_path,
        capture_output=True,
        env={**os.environ, "LOSS": "nan"},
        timeout=300,
    )
    assert failed.returncode == 1 and b"loss.nonfinite" in failed.stderr
    sound = subprocess.run(
        [*TARMAC, "--", *command],
        cwd=tmp_path,
        capture_output=True,
        env={**os.environ, "LOSS": "0.5"},
        timeout=300,
    )
    assert sound.returncode == 0
    assert (
        b"it ended well: exit code 0, 1 line of progress, loss 0.5, logs/a/checkpoints/epoch_1.pt written"
        in sound.stderr
    )


@pytest.mark.proof
def test_a_trainer_of_transformers_that_stopped_early_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
            import torch
            from transformers import Trainer, TrainerCallback, TrainingArguments

            class Model(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = torch.nn.Linear(8, 2)

                def forward(self, x, labels):
                    logits = self.layer(x)
                    return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

            class Early(TrainerCallback):
                def on_step_end(self, args, state, control, **_):
                    control.should_training_stop = state.global_step == 12

            data = [{"x": torch.randn(8), "labels": torch.tensor(row % 2)} for row in range(160)]
            options = {"logging_steps": 4, "save_steps": 4, "max_steps": 20, "report_to": [], "use_cpu": True}
            Trainer(Model(), TrainingArguments("out", **options), train_dataset=data, callbacks=[Early()]).train()
        """)
    )
    done = watched(tmp_path, sys.executable, "train.py", options=("--json",))
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["trainer"] == "Hugging Face Trainer"
    assert report["checkpoint"] == f"{tmp_path}/out/checkpoint-12/model.safetensors"
    assert report["steps"] >= 12 // 4
    [finding] = report["findings"]
    assert finding["code"] == "run.incomplete" and finding["severity"] == "warning"
    assert finding["evidence"]["what"] == "it ended at step 12 of 20"


def test_a_wrong_use_is_one_line(tmp_path: Path) -> None:
    missing = watched(tmp_path, "./no-such-program")
    assert missing.returncode == 2 and b"cannot be started" in missing.stderr
    pattern = watched(tmp_path, "true", options=("--progress", "("))
    assert pattern.returncode == 2 and b"is no regular expression" in pattern.stderr
    assert watched(tmp_path).returncode == 2


def test_the_verdict_for_which_it_stopped_the_training_stands_last(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Below the traceback of a training that was interrupted, with the exit code of a failure."""
    monkeypatch.setitem(rhythm.PATIENCE_S, "step", 0.5)
    seen = observation("no-caption-member-resampled")
    done = examination.Examination("process 7", "7", judge(seen), seen, 0.0)
    monkeypatch.setattr(examination, "examine_process", lambda *_: done)
    words = script(
        """
        import time
        print("step 1/9", flush=True)
        time.sleep(600)
        """
    )
    assert cli.main(["watch", "--stop", "--", *words]) == 1
    lines = capfd.readouterr().err.splitlines()
    end = next(place for place, line in enumerate(lines) if line.startswith("✗ watch: it stopped the"))
    assert "KeyboardInterrupt" in lines[end - 1]
    assert lines[end + 1].startswith("VERDICT  filter.spinning: 2 workers read and drop everything")
    assert lines[end + 2].startswith("FIX        kill -INT") and end + 4 == len(lines)


def test_what_may_yet_end_is_named_once_and_not_stopped(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A worker that computes all the time may be at a large sample, or in a loop without end."""
    monkeypatch.setitem(rhythm.PATIENCE_S, "step", 0.3)
    monkeypatch.setattr(Rhythm, "was_at_work", lambda self, now: None)  # it is looked at again at once
    seen = observation("a-sample-that-computes-for-ever")
    done = examination.Examination("process 7", "7", judge(seen), seen, 0.0)
    looked: list[int] = []
    monkeypatch.setattr(examination, "examine_process", lambda pid, log: (looked.append(pid), done)[1])
    words = script('import time; print("step 1/2", flush=True); time.sleep(5); print("step 2/2", flush=True)')
    assert cli.main(["watch", "--stop", "--", *words]) == 0
    shown = capfd.readouterr().err
    assert len(looked) > 1 and shown.count("VERDICT  worker.looping: 1 worker computes all the time") == 1
    assert "! no progress for" in shown and "stops it" not in shown


class TestRhythm:
    def step(self, done: float, total: float | None = None) -> Progress:
        return Progress("step", done, total)

    def test_patience_comes_first_and_then_what_the_run_itself_is_used_to(self) -> None:
        run = Rhythm(0.0)
        assert not run.is_suspicious(rhythm.PATIENCE_S["start"])
        assert run.is_suspicious(rhythm.PATIENCE_S["start"] + 1)
        run.note(self.step(1), 100.0)
        assert run.limit() == rhythm.PATIENCE_S["step"]
        run.note(self.step(2), 130.0)
        assert run.limit() == 5 * 30

    def test_each_phase_has_its_own_measure(self) -> None:
        run = Rhythm(0.0)
        for number in range(4):
            run.note(self.step(number), float(number))
        run.note(Progress("validate"), 10.0)
        assert run.limit() == rhythm.PATIENCE_S["validate"]
        run.note(self.step(5), 510.0)
        run.note(Progress("validate"), 511.0)
        assert run.limit() == 5 * 500

    def test_a_run_at_work_is_looked_at_ever_less_often(self) -> None:
        run = Rhythm(0.0)
        run.was_at_work(70.0)
        assert not run.is_suspicious(140.0)
        assert run.is_suspicious(141.0)

    def test_a_slow_start_does_not_make_the_wait_for_a_batch_longer(self) -> None:
        run = Rhythm(0.0)
        run.was_at_work(400.0)
        run.note(Progress("first_batch", epoch=0), 500.0)
        assert run.is_suspicious(501.0 + rhythm.PATIENCE_S["first_batch"])

    def test_a_bar_that_is_drawn_again_is_no_progress(self) -> None:
        run = Rhythm(0.0)
        run.note(self.step(5, 10), 1.0)
        run.note(self.step(5, 10), 50.0)
        assert run.since == 1.0 and run.steps == 1

    def test_behind_the_last_step_comes_the_end(self) -> None:
        run = Rhythm(0.0)
        run.note(self.step(10, 10), 1.0)
        assert run.phase == "end"


@pytest.mark.system
def test_a_stall_has_its_verdict_in_the_same_terminal_and_can_be_stopped(tmp_path: Path) -> None:
    """open_clip without captions, which never yields a batch."""
    words = command(tmp_path, write_shards(tmp_path / "shards", NO_CAPTIONS))
    done = watched(tmp_path, *words, options=("--stop",), timeout_s=900)
    assert b"VERDICT  filter.spinning" in done.stderr, done.stderr.decode()
    assert done.stderr.index(b"Start epoch 0") < done.stderr.index(b"VERDICT")
    assert done.returncode == 1
    assert b"FIX " in b"".join(done.stderr.splitlines()[-3:]), "below what open_clip prints as it ends"
    left = [
        one
        for one in psutil.process_iter(["cmdline"])
        if str(tmp_path) in " ".join(one.info["cmdline"] or [])
    ]
    assert left == []


@pytest.mark.system
def test_a_healthy_training_ends_well_without_a_word(tmp_path: Path) -> None:
    words = command(tmp_path, write_shards(tmp_path / "shards", samples=40), "--epochs", "1", samples=160)
    done = watched(tmp_path, *words, timeout_s=900)
    assert done.returncode == 0, done.stderr.decode()
    assert b"VERDICT" not in done.stderr
    assert "✓ watch: it ended well: exit code 0".encode() in done.stderr
    assert b"logs/run/checkpoints/epoch_1.pt written" in done.stderr
