"""Writes the pages of docs/tour/ from real runs: `python -m tests.docs.record_tour [NAME…]`.

A page names the host, the user and the folder that it was made in. So every recording runs in namespaces of its own,
on the newest commit's files at /home/you/tarmac, on a host called `tarmac`; what it leaves running ends with
them. They need a Linux that lets you make user namespaces. All recordings take about ten minutes on two cores.
Beside each page stands what the terminal showed, from which the outputs and figures in docs/models/ are taken.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOUR = ROOT / "docs/tour"
HOME = "/home/you"
LIMIT_S = 1200
SETUP = f"""set -e
hostname tarmac
mount -t tmpfs tmpfs /home
mkdir -p {HOME}/tarmac {HOME}/bin
mount --bind "$ROOM" {HOME}/tarmac
cd {HOME}/tarmac
mkdir -p .venv
mount --bind "$VENV" .venv
printf '#!/bin/sh\\nexec python -m flows.cli "$@"\\n' > {HOME}/bin/tarmac
chmod +x {HOME}/bin/tarmac
"""
NAMESPACES = ("--user", "--map-root-user", "--mount", "--uts", "--pid", "--fork", "--mount-proc")
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

BREAK = """
import csv, shutil
from pathlib import Path
shutil.copytree('data/raw/digits', 'data/raw/scans')
table = Path('data/raw/scans/captions.csv')
rows = list(csv.reader(table.open(newline='')))
files = [Path('data/raw/scans', row[rows[0].index('file')]) for row in rows[1:]]
for file in files[:6]:
    file.write_bytes(file.read_bytes()[:60])
for file, twin in zip(files[20:28], files[40:48]):
    shutil.copy(file, twin)
for row in rows[61:65]:
    row[rows[0].index('caption')] = ''
csv.writer(table.open('w', newline='')).writerows(rows)
"""
"""Six pictures that are cut, eight that are copies of others with another caption, and four captions that are empty."""

WITHOUT_CAPTIONS = """
from pathlib import Path
from tests.stalls.open_clip import write_shards
write_shards(Path('data/raw/photos'), ('jpg', 'json', 'paug.json'))
"""


@dataclass(frozen=True)
class Recording:
    """Commands of a shell, and where the newest page is that they leave; `prepare` runs first and is not shown."""

    commands: tuple[str, ...]
    page: str
    prepare: str = ""


RECORDINGS = {
    "clip": Recording(
        ("tarmac example digits", "tarmac run configs/digits-clip.yaml"), "runs/digits-clip-*/report.html"
    ),
    "bench": Recording(
        ("tarmac bench configs/digits-clip.yaml",),
        "runs/digits-clip-bench.html",
        prepare="tarmac example digits && tarmac build configs/digits-clip.yaml",
    ),
    "reinforced": Recording(
        (
            "tarmac example reinforced",
            "tarmac run configs/reinforced-clip.yaml --set train.recipe=clip"
            " --set 'train.model={name: tarmac/digits}'",
            "tarmac run configs/reinforced-clip.yaml",
        ),
        "runs/reinforced-clip-*/report.html",
    ),
    "ct-clip": Recording(
        ("tarmac example phantoms", "tarmac run configs/phantoms-ct.yaml"), "runs/phantoms-ct-*/report.html"
    ),
    "vlm": Recording(
        ("tarmac example digits-chat", "tarmac run configs/digits-chat.yaml"),
        "runs/digits-chat-*/report.html",
    ),
    "external": Recording(
        ("tarmac run configs/open-clip-external.yaml",),
        "runs/open-clip-external-*/report.html",
        prepare="tarmac example digits",
    ),
    "fine-tuning": Recording(
        (
            "tarmac run configs/fine-tune/digits-old.yaml",
            "cp runs/digits-old-*/checkpoints/latest/model.safetensors digits-old.safetensors",
            "tarmac run configs/fine-tune/digits-new.yaml",
        ),
        "runs/digits-new-*/report.html",
        prepare="tarmac example digits",
    ),
    "look": Recording(
        ("tarmac init data/raw/scans", "tarmac build configs/scans.yaml", "tarmac look data/scans"),
        "data/scans/look.html",
        prepare=f'tarmac example digits && python -c "{BREAK}"',
    ),
    "doctor": Recording(
        (
            "python -m open_clip_train.main --train-data 'data/raw/photos/train-{000000..000003}.tar'"
            " --train-num-samples 1600 --dataset-type webdataset --model RN50 --batch-size 8 --workers 2"
            " --precision fp32 > train.log 2>&1 &",
            "sleep 30; tarmac doctor --pid $! --log train.log --out doctor.html",
        ),
        "doctor.html",
        prepare=f'python -c "{WITHOUT_CAPTIONS}"',
    ),
}


def unpack_commit(room: Path) -> None:
    """Unpack what a recording needs of the newest commit, which nobody edits meanwhile."""
    room.mkdir()
    parts = ("flows", "tasks", "configs", "tests/__init__.py", "tests/services.py", "tests/stalls")
    archive = subprocess.run(["git", "archive", "HEAD", *parts], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", str(room)], input=archive.stdout, check=True)


def record(name: str, room: Path) -> str:
    """Run a recording in its namespaces and return what the terminal showed."""
    recording = RECORDINGS[name]
    lines = [SETUP]
    if recording.prepare:
        lines.append(f"{{ {recording.prepare} ; }} > prepared.log 2>&1")
    lines.append("set +e")
    for command in recording.commands:
        lines += [f"printf '%s\\n' {quoted('$ ' + command)}", command]
    env = {
        "ROOM": str(room),
        "VENV": str(ROOT / ".venv"),
        "HOME": HOME,
        "USER": "you",
        "LOGNAME": "you",
        "PATH": f"{HOME}/bin:{HOME}/tarmac/.venv/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "PYTHONPATH": f"{HOME}/tarmac",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
        "COLUMNS": "140",
        "TERM": "dumb",
    }
    started = ["unshare", *NAMESPACES, "bash", "-c", "\n".join(lines)]
    done = subprocess.run(
        started, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S
    )
    return COLOUR.sub("", done.stdout)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def main(names: list[str]) -> int:
    if shutil.which("unshare") is None:
        print("record_tour needs the command unshare, of Debian's package util-linux")
        return 2
    TOUR.mkdir(exist_ok=True)
    for name in names or list(RECORDINGS):
        with tempfile.TemporaryDirectory(prefix="tour-") as folder:
            room = Path(folder) / "room"
            unpack_commit(room)
            screen = record(name, room)
            print(screen, flush=True)
            pages = sorted(room.glob(RECORDINGS[name].page), key=lambda page: page.stat().st_mtime)
            if not pages:
                print(f"{name}: there is no {RECORDINGS[name].page}")
                return 1
            shutil.copy(pages[-1], TOUR / f"{name}.html")
        (TOUR / f"{name}.txt").write_text(screen)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
