"""What a stranger's machine shows: the five-minute start typed from top to bottom, and the base without torch."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.docs.pages import text_of
from tests.docs.transcript import Comparison, SavedFile, steps
from tests.services import ROOT
from tests.system.clean_root import UV, CleanRoot, Terminal, clean_root, wheel

pytestmark = pytest.mark.system

PAGE = "docs/start.md"
INSTALL = "pip install "
PINNED = f"{UV} pip install -q --compile-bytecode -c /opt/constraints.txt"


@pytest.mark.proof  # it takes five to seven minutes on two cores
def test_the_page_of_the_start_is_typed_from_top_to_bottom(tmp_path: Path) -> None:
    compared, commands = Comparison(), 0
    with clean_root() as root:
        page = text_of(PAGE)
        made = wheel(tmp_path)
        root.put(made, f"/root/{made.name}")
        with root.terminal() as terminal:
            for step in steps(page):
                if isinstance(step, SavedFile):
                    (root.folder / "root" / step.name).write_text(step.content)
                    continue
                if step.words.startswith(INSTALL):
                    bring_dependencies(root, terminal, made)
                output, code = typed(terminal, step.words)
                assert code == step.code, f"exit code {code}: {step.words}\n{output}"
                if step.words.startswith(INSTALL):
                    assert output.endswith(f"Successfully installed {'-'.join(made.name.split('-')[:2])}\n")
                else:
                    problem = compared.difference(step.output, output)
                    assert problem is None, f"$ {step.words}: {problem}\n{output}"
                commands += 1
    assert commands == page.count("\n$ ") > 10


def bring_dependencies(root: CleanRoot, terminal: Terminal, made: Path) -> None:
    """Have uv install what the wheel asks for as `constraints.txt` pins it, so that of all that the page's own line
    asks pip for only the wheel itself is missing. pip would download gigabytes for each test."""
    root.put(ROOT / "constraints.txt", "/opt/constraints.txt")
    line = f"{PINNED} './{made.name}[all]' && {UV} pip uninstall -q tarmac"
    output, code = typed(terminal, line)
    assert code == 0, output


def typed(terminal: Terminal, line: str) -> tuple[str, int]:
    started = time.monotonic()
    output, code = terminal.types(line)
    print(f"{time.monotonic() - started:6.1f} s  $ {line}\n{output}", flush=True)
    return output, code


TRAINING = """
import time
for step in range(40):
    print("step", step, "loss", 1 / (step + 1), flush=True)
    time.sleep(0.1)
"""
STUCK = """
print("step 1", flush=True)
input()
"""
CONFIG = """
name: digits
dataset: {output: digits, modality: image_text, source: {kind: table, path: captions.csv, image: file, caption: caption}}
loader: {workers: 2}
train: {recipe: clip, model: {name: tarmac/digits}, batch_size: 64, steps: 100, lr: 0.001, warmup: 10, checkpoint_every: 50}
track: {mode: disabled}
"""


def test_the_base_works_without_torch(tmp_path: Path, digits_dataset: Path) -> None:
    """The wheel that pip installs without extras verifies, watches, examines and preflights."""
    with clean_root() as root:
        made = wheel(tmp_path)
        root.put(made, f"/root/{made.name}")
        root.put(digits_dataset, "/root/digits")
        for name, text in {"train.py": TRAINING, "stuck.py": STUCK, "digits.yaml": CONFIG}.items():
            (root.folder / "root" / name).write_text(text)

        def shows(line: str, code: int, *said: str) -> None:
            found = root.run(f". tarmac/bin/activate; {line}")
            print(f"$ {line}\n{found.output}")
            assert found.code == code and all(text in found.output for text in said), found.output

        installed = root.run(f"python3 -m venv tarmac && tarmac/bin/pip install -q ./{made.name}")
        assert installed.code == 0, installed.output
        shows("python -c 'import torch'", 1, "No module named 'torch'")
        shows("python -c 'import prefect'", 1, "No module named 'prefect'")

        shows("tarmac verify digits", 0, "is sound")
        flip = (
            "printf '\\377' | dd of=digits/current/train/000001.tar bs=1 seek=5000 conv=notrunc status=none"
        )
        shows(f"{flip}; tarmac verify digits", 1, "✗ shard.checksum", "train/000001.tar")

        shows("tarmac watch -- python train.py", 0, "it ended well: exit code 0, 40 lines of progress")

        waiting = "mkfifo never; python stuck.py <>never >stuck.log 2>&1 & sleep 2"
        shows(f"{waiting}; tarmac doctor --pid $!", 1, "VERDICT  input.waiting")

        shows("tarmac preflight digits.yaml", 0, "every worker of every rank gets a batch: 1,539 samples")
        shows("tarmac train digits.yaml", 2, "pip install 'tarmac[prefect]'")

        # What such a message advises completes this install, although an index has another project of that name.
        shows(
            "pip install 'tarmac[doctor]'; tarmac --version",
            0,
            "Successfully installed py-spy",
            "tarmac 0.1.0",
        )
