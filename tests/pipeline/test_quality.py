"""What a person reads of a dataset whose held-out pictures are copies of those that are trained on, and what
`run` does about it."""

import json
from pathlib import Path

import pytest

from tests.dataset.quality.planted import planted, write
from tests.flows.test_cli import tarmac

CONFIG = """\
name: photos
dataset:
  output: data/photos
  modality: image_text
  source: {kind: table, path: raw/captions.csv, image: file, caption: caption}
train: {recipe: clip, model: {name: tarmac/digits}, batch_size: 8, steps: 4, lr: 1.0e-3, warmup: 1, checkpoint_every: 4}
"""
LEAKED = """\
✗ split.leak val: 4 of 21 samples (19.0 %) equal or nearly equal samples of another split
    such as  train: 0103.jpg = val: copy6.jpg
    fix      set dataset.splits.group_by: content, which keeps such samples on one side, and build again; or allow it by dataset.leak_budget
"""
COPIED = """\
! samples.duplicated train: 3.0 % of 132 samples: 0 exact and 4 near copies of others
    such as  copy7.jpg = 0077.jpg
    fix      remove them from the source, or leave them: a training sees them that much more often
"""


@pytest.mark.proof
def test_a_leak_ends_build_and_run_with_its_fix(tmp_path: Path) -> None:
    samples, _ = planted("near copies")
    write(samples, tmp_path / "raw")
    (tmp_path / "photos.yaml").write_text(CONFIG)
    built = tarmac("build", "photos.yaml", cwd=tmp_path)
    shown = built.stdout.replace("\u202f", " ")
    assert built.returncode == 1 and LEAKED in shown and COPIED in shown
    assert (tmp_path / "data/photos/current/manifest.json").exists()

    run = tarmac("run", "photos.yaml", cwd=tmp_path)
    assert run.returncode == 1
    assert "the version is current, but nothing was trained on it" in run.stderr
    assert LEAKED.splitlines()[0] in run.stderr.replace("\u202f", " ")
    assert not list((tmp_path / "runs").glob("photos-*/attempts"))

    said = json.loads(tarmac("build", "photos.yaml", "--json", cwd=tmp_path).stdout)
    assert (said["ok"], said["up_to_date"]) == (False, True)
    assert {finding["code"]: finding["config"] for finding in said["findings"]} == {
        "split.leak": {"dataset.splits.group_by": "content"},
        "samples.duplicated": None,
    }
    mended = tarmac("build", "photos.yaml", "--set", "dataset.splits.group_by=content", cwd=tmp_path)
    assert mended.returncode == 0 and "split.leak" not in mended.stdout
