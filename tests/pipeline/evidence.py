"""What a finished run left behind, in a form that two runs can be compared by."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tasks.core.files import blake3_file, read_json, read_lines
from tasks.supervision.tracking import wandb_file


def weights(run: Path) -> dict[str, str]:
    """BLAKE3 of the model of every checkpoint."""
    return {path.parent.name: blake3_file(path) for path in run.glob("checkpoints/step_*/model.safetensors")}


def metrics(run: Path) -> list[dict[str, Any]]:
    rows, _ = read_lines(run / "metrics.jsonl")
    return rows


def results(run: Path) -> dict[str, dict[str, float]]:
    """The metrics of every evaluation, by step and task."""
    found = [
        path for path in run.glob("evaluations/step_*/*.json") if not path.name.endswith("predictions.json")
    ]
    return {f"{path.parent.name}/{path.stem}": read_json(path)["metrics"] for path in found}


def assert_wandb_holds_everything_once(run: Path) -> None:
    """The .wandb files, read back, against metrics.jsonl and the evaluation results."""
    held = [row for row in wandb_file.rows_of(run / "wandb") if "uid" in row]
    uids = Counter(row["uid"] for row in held)
    assert set(uids.values()) == {1}, uids.most_common(3)
    by_uid = {row["uid"]: row for row in held}
    wanted = metrics(run)
    for row in wanted:
        kept = by_uid.pop(row["uid"])
        assert kept["train/step"] == row["train/step"]
        for key, value in row.items():
            assert key in ("t",) or value is None or kept[key] == value, (key, kept, row)
    lives = [uid for uid in by_uid if ":goodput:" in uid]
    assert lives and 0 < by_uid[lives[-1]]["goodput/share"] <= 1
    for uid in lives:
        del by_uid[uid]
    evaluations = {
        f"step_{row['eval/step']}/{uid.split(':')[2].partition('/')[2]}": row for uid, row in by_uid.items()
    }
    assert set(evaluations) == set(results(run))
    for name, values in results(run).items():
        task = name.partition("/")[2]
        for metric, value in values.items():
            assert evaluations[name][f"eval/{task}/{metric}"] == value
