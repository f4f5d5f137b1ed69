"""Records README's picture of a stalled training, and draws it: `python -m tests.docs.record_terminal`.

A real training by open_clip's own trainer stalls on a pty, a real doctor examines it, its fix is applied, and the
first batch comes. What the processes wrote is drawn into docs/terminal-light.svg and docs/terminal-dark.svg. Text is
left out only where the picture shows `…`, and none is changed; colours are the picture's own. It takes two minutes.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path

from tasks.dataset import examples
from tests.conftest import ROOT
from tests.docs.terminal import Line, TerminalLines, draw
from tests.stalls.open_clip import MODEL

COLUMNS, ROWS = 104, 40
SHARDS = 4
SILENT_S = 60.0
"""How long the training shows nothing before the doctor is asked."""
PATIENCE_S = 240.0
LIGHT, DARK = ROOT / "docs/terminal-light.svg", ROOT / "docs/terminal-dark.svg"
THEMES = {
    LIGHT: {
        **{"ground": "#ffffff", "bar": "#f6f8fa", "edge": "#d1d9e0", "text": "#1f2328"},
        **{"dim": "#59636e", "red": "#b3151f", "green": "#116329"},
    },
    DARK: {
        **{"ground": "#0d1117", "bar": "#161b22", "edge": "#3d444d", "text": "#e6edf3"},
        **{"dim": "#9198a1", "red": "#ff7b72", "green": "#56d364"},
    },
}
TITLE = "A training that hangs, and why"
ABOUT = (
    "open_clip's trainer prints Start epoch 0, and then nothing. In a second terminal tarmac doctor reports that its "
    "workers read every sample and drop it, because no sample has a caption member, with evidence, what was ruled out "
    "and the fix. The shards are built anew with captions, and the training takes its first step."
)
LEFT_OUT: Line = (("…", "dim"),)
SECOND_TERMINAL: Line = ((f"── a second terminal {'─' * (COLUMNS - 21)}", "dim"),)
LABELS = {
    "VERDICT": "bold red",
    "EVIDENCE": "bold",
    "RULED OUT": "bold",
    "FIX": "bold green",
    "✓": "bold green",
}
"""The classes of the words that a line begins with."""


class Command:
    """A command line in a shell on a pty of its own, and all that it has written there."""

    def __init__(self, line: str, folder: Path) -> None:
        self.line = line
        self._written = b""
        ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {
            **os.environ,
            "PATH": path,
            "TERM": "xterm",
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        self.process = subprocess.Popen(
            ["bash", "-c", line],
            cwd=folder,
            env=env,
            stdin=its,
            stdout=its,
            stderr=its,
            start_new_session=True,
        )
        os.close(its)
        self._reader = threading.Thread(target=self._read, args=(ours,), daemon=True)
        self._reader.start()

    def _read(self, terminal: int) -> None:
        with suppress(OSError):  # Linux ends the reading of a terminal that nobody has open with EIO
            while piece := os.read(terminal, 65536):
                self._written += piece
        os.close(terminal)

    @property
    def text(self) -> str:
        """What it has written until now."""
        return self._written.decode(errors="replace")

    def wait_for(self, words: str) -> None:
        """Wait until it has written these words. TimeoutError with what it wrote instead."""
        self._wait(lambda: words in self.text)

    def wait_for_end(self, code: int | None = 0) -> None:
        """Wait until it ends with this exit code, or any. TimeoutError or RuntimeError with what it wrote."""
        self._wait(lambda: self.process.poll() is not None)
        self._reader.join(5)
        if code is not None and self.process.returncode != code:
            raise RuntimeError(f"{self.line} ended with {self.process.returncode}:\n{self.text[-3000:]}")

    def _wait(self, is_over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_over():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.line}:\n{self.text[-3000:]}")
            time.sleep(0.1)

    def shown(self, *starts: str) -> Iterator[Line]:
        """The typed line, and the lines that hold one of these words, with `…` for each gap.

        RuntimeError where a word is in no line.
        """
        lines = TerminalLines(self.text).lines()
        for start in starts:
            if not any(start in line for line in lines):
                raise RuntimeError(f"{self.line}: no line has {start!r}:\n{self.text[-3000:]}")
        yield (("$ ", "dim"), (_cut(self.line, COLUMNS - 2), "bold"))
        is_gap = False
        for line in lines:
            if any(start in line for start in starts):
                yield _labelled(_cut(line, COLUMNS))
                is_gap = False
            elif not is_gap:
                yield LEFT_OUT
                is_gap = True


def _cut(line: str, columns: int) -> str:
    """A line that fits, its end given up for ` …` at the end of a word."""
    return line if len(line) <= columns else line[: columns - 1].rpartition(" ")[0] + " …"


def _labelled(line: str) -> Line:
    for label, classes in LABELS.items():
        if line.startswith(label):
            return ((label, classes), (line.removeprefix(label), ""))
    return ((line, ""),)


def write_shards(folder: Path) -> int:
    """Write the digits as WebDataset shards whose captions stand in `json`, and return the number of samples."""
    folder.mkdir()
    with tempfile.TemporaryDirectory() as raw:
        count = examples.digits(Path(raw))
        with (Path(raw) / "captions.csv").open(encoding="utf-8", newline="") as table:
            rows = list(csv.DictReader(table))
        for shard in range(SHARDS):
            with tarfile.open(folder / f"{shard:06d}.tar", "w") as tar:
                for row in rows[shard::SHARDS]:
                    image = Path(raw) / row["file"]
                    caption = json.dumps({"caption": row["caption"]}).encode()
                    for name, content in ((image.name, image.read_bytes()), (f"{image.stem}.json", caption)):
                        info = tarfile.TarInfo(name)
                        info.size = len(content)
                        tar.addfile(info, BytesIO(content))
    return count


@contextmanager
def training(shards: str, samples: int, name: str, folder: Path) -> Iterator[Command]:
    """open_clip's own trainer with a tiny model on these shards; ended with its workers."""
    (folder / "tiny").mkdir(exist_ok=True)
    (folder / "tiny/open_clip_config.json").write_text(json.dumps(MODEL))
    options = f"--train-data '{shards}' --batch-size 64 --workers 2 --train-num-samples {samples}"
    rest = f"--model local-dir:tiny --precision fp32 --log-every-n-steps 1 --name {name}"
    command = Command(f"python -m open_clip_train.main {options} {rest}", folder)
    try:
        yield command
    finally:
        with suppress(ProcessLookupError):
            os.killpg(command.process.pid, signal.SIGKILL)


def record(folder: Path) -> Sequence[Line]:
    """Let the training stall, examine it, mend it, and return what the terminals showed."""
    samples = write_shards(folder / "digits")
    with training(f"digits/{{000000..{SHARDS - 1:06d}}}.tar", samples, "stalled", folder) as stalled:
        stalled.wait_for("Start epoch 0")
        time.sleep(SILENT_S)
        if not stalled.text.rstrip().endswith("Start epoch 0"):
            raise RuntimeError(f"it has not stalled:\n{stalled.text[-3000:]}")
        before = list(stalled.shown("Start epoch 0"))
        pid = stalled.process.pid
        doctor = Command(f"tarmac doctor --pid {pid}", folder)
        doctor.wait_for_end(code=1)
        mending = f"kill -INT {pid}; tarmac init digits && tarmac build configs/digits.yaml"
        build = Command(mending, folder)
        build.wait_for_end()
        stalled.wait_for_end(code=None)
    last = len(list((folder / "data/digits/current/train").glob("*.tar"))) - 1
    shards = f"data/digits/current/train/{{000000..{last:06d}}}.tar"
    with training(shards, samples, "mended", folder) as mended:
        mended.wait_for("Train Epoch: 0 [")
        mended.wait_for("/gpu")
        time.sleep(1)
    facts = ("  main ", "  2 workers ", "  log ", "  workers ", "  data ", "  rule ")
    ruled = ("RULED OUT", "shuffle.filling")
    fix = ("FIX ", "give every sample", "SAVED ")
    after = list(mended.shown("Train Epoch: 0 ["))
    return [
        *before,
        SECOND_TERMINAL,
        *doctor.shown("VERDICT", "EVIDENCE", *facts, *ruled, *fix),
        *build.shown("  members ", "✓ version"),
        *after[: after.index(LEFT_OUT) + 2],
    ]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="terminal-") as folder:
        lines = record(Path(folder))
    for file, theme in THEMES.items():
        file.write_text(draw(lines, COLUMNS, TITLE, ABOUT, theme), encoding="utf-8")


if __name__ == "__main__":
    main()
