"""Bad input is accounted for by reason, on the last screen and in rejects.parquet; too much of it fails."""

from __future__ import annotations

import io
import shutil
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.pipeline.conftest import make_project

pytestmark = pytest.mark.system  # beside a real Prefect server


def spoil(raw: Path, folder: Path) -> Path:
    """A copy of the digits with one of each fault."""
    shutil.copytree(raw, folder)
    (folder / "digit_0000.png").unlink()
    (folder / "digit_0001.png").write_text("this is no picture")
    whole = io.BytesIO()
    Image.effect_noise((64, 64), 80).save(whole, "PNG")
    (folder / "digit_0002.png").write_bytes(whole.getvalue()[:-900])
    lines = (folder / "captions.csv").read_bytes().split(b"\n")
    lines[4] = b"digit_0003.png,,three"
    lines[5] = b"digit_0004.png,caf\xe9,four"
    lines.insert(7, lines[6])
    (folder / "captions.csv").write_bytes(b"\n".join(lines))
    return folder


FAULTS = {
    "member.missing": 1,
    "image.not_an_image": 1,
    "image.undecodable": 1,
    "caption.empty": 1,
    "caption.encoding": 1,
    "key.duplicate": 1,
}


def test_bad_input_is_accounted_for_and_too_much_of_it_changes_nothing(
    server: dict[str, str], tmp_path: Path, raw_digits: Path
) -> None:
    raw = spoil(raw_digits, tmp_path / "raw")
    project = make_project(tmp_path / "project", server, raw)
    done = project.tarmac("build", "configs/digits-clip.yaml")
    assert done.returncode == 0, done.stderr
    assert "1,798 read = 1,792 accepted + 0 filtered + 6 rejected" in done.stdout
    for reason, count in FAULTS.items():
        assert f"{count} {reason}" in done.stdout
    table = pq.read_table(project.path / "data/digits/current/rejects.parquet").to_pylist()
    assert Counter(row["reason"] for row in table) == FAULTS
    assert all(row["source"].startswith("captions.csv:") for row in table)

    before = (project.path / "data/digits/current").readlink()
    for path in sorted(raw.glob("*.png"))[:200]:
        path.unlink()
    failed = project.tarmac("build", "configs/digits-clip.yaml")
    assert failed.returncode == 1
    assert "are rejected (" in failed.stderr
    assert "member.missing" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert (project.path / "data/digits/current").readlink() == before
