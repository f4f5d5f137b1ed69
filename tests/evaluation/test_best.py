"""The best checkpoint of a run: which metrics may choose it, and what they choose."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from flows.parameters import Overrides, configured
from tasks.core import config as configs
from tasks.core.errors import UsageError
from tasks.core.files import link_atomic, write_json
from tasks.evaluation import best
from tasks.evaluation.kinds.multilabel import MultiLabel
from tasks.runs.folder import RunFolder
from tests.conftest import ROOT, digits_config

CHAT = "[vlm, validation_loss, {kind: lmms_eval, names: [mmstar, ocrbench]}]"


def digits(*overrides: str) -> None:
    configured(ROOT / "configs/digits-clip.yaml", Overrides(set=list(overrides)))


def chat(metric: str, tasks: str = CHAT) -> str:
    overrides = Overrides(set=[f"evaluate.tasks={tasks}", f"evaluate.best={metric}"])
    config = configured(ROOT / "configs/digits-chat.yaml", overrides)
    assert config.evaluate is not None and config.evaluate.best is not None
    return best.direction_of(config, config.evaluate.best.metric)


def a_run(folder: Path, values: Mapping[int, float | None], losses: Mapping[int, float]) -> RunFolder:
    """A run with these checkpoints by their validation losses, and these results of one metric."""
    run = RunFolder(folder)
    for step, loss in losses.items():
        meta = {"step": step, "files": {}, "val_loss": loss, "time": 0.0}
        write_json(run.checkpoint(step) / "meta.json", meta)
    for step, value in values.items():
        write_json(run.eval_result(step), {"global_step": step, "results": {"zero_shot_top1": value}})
    return run


@pytest.mark.parametrize(
    ("values", "mode", "chosen"),
    [
        ({200: 0.7, 400: 0.9, 600: 0.8}, "null", 400),
        ({200: 0.7, 400: 0.9, 600: 0.8}, "min", 200),
        ({200: 0.7, 400: 0.9, 600: 0.9}, "max", 400),
        ({200: 0.7, 400: None}, "null", 200),
        ({200: 0.7, 800: 0.9}, "null", 200),
        ({}, "null", 600),
    ],
    ids=[
        "highest",
        "lowest",
        "the earlier of equals",
        "not finite",
        "of a checkpoint that is gone",
        "no result",
    ],
)
def test_the_metric_chooses_among_the_checkpoints_that_have_a_result(
    tmp_path: Path, values: Mapping[int, float | None], mode: str, chosen: int
) -> None:
    run = a_run(tmp_path / "run", values, {200: 0.5, 400: 0.4, 600: 0.3})
    config = digits_config(tmp_path, tmp_path, f"evaluate.best={{metric: zero_shot_top1, mode: {mode}}}")
    found = best.choose(run, config)
    assert found is not None and found.step == chosen
    assert best.is_due(run, config)
    link_atomic(run.best, found.path.name)
    assert not best.is_due(run, config)
    by = (
        f"zero_shot_top1 {values[chosen]:.3f}"
        if values
        else "validation loss 0.300, until zero_shot_top1 has a result"
    )
    assert str(best.standing(run, config)) == f"step {chosen} by {by}"


def test_without_a_metric_the_lowest_validation_loss_chooses(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", {200: 0.9}, {200: 0.5, 400: 0.4})
    config = digits_config(tmp_path, tmp_path)
    found = best.choose(run, config)
    assert found is not None and found.step == 400 and best.standing(run, config) is None
    link_atomic(run.best, found.path.name)
    assert str(best.standing(run, config)) == "step 400 by validation loss 0.400"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("zero_shot_top", "no task of evaluate.tasks gives 'zero_shot_top'; did you mean zero_shot_top1?"),
        ("top1", "no task of evaluate.tasks gives 'top1'; did you mean zero_shot_top1?"),
        ("retrieval_image_to_text_R@1", "no task .* gives 'retrieval_image_to_text_R@1'; "),
        ("{mode: max}", "metric: is required: Name of the metric"),
        ("{metric: zero_shot_top1, mode: high}", "mode: must be 'max' or 'min', not 'high'"),
    ],
)
def test_a_metric_that_no_task_gives_is_refused_before_anything_is_built(override: str, says: str) -> None:
    with pytest.raises(UsageError, match=rf"evaluate\.best[.:] ?{says}"):
        digits(f"evaluate.best={override}")


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("vlm_exact_match", "max"),
        ("vlm_loss", "min"),
        ("validation_loss_loss", "min"),
        ("mmstar_average", "max"),
    ],
)
def test_of_losses_the_lowest_is_the_best_and_else_the_highest(metric: str, mode: str) -> None:
    assert chat(metric) == mode


def test_a_median_rank_is_better_low_and_what_a_program_writes_is_known_by_the_program() -> None:
    tasks = "[retrieval, {kind: command, name: mine, command: [prog]}]"
    for metric, mode in {"retrieval_text_to_image_median_rank": "min", "mine_fid": "max"}.items():
        config = configured(
            ROOT / "configs/digits-clip.yaml",
            Overrides(set=[f"evaluate.tasks={tasks}", f"evaluate.best={metric}"]),
        )
        assert best.direction_of(config, metric) == mode


def test_a_benchmark_that_nobody_runs_is_refused_and_a_task_with_a_name_of_its_own_puts_it_in_front() -> None:
    with pytest.raises(UsageError, match=r"gives 'mmmu_val_acc'; "):
        chat("mmmu_val_acc")
    named = "[{kind: lmms_eval, name: quick, names: [mmstar], limit: 9}]"
    with pytest.raises(UsageError, match=r"gives 'mmstar_average'; "):
        chat("mmstar_average", named)
    assert chat("quick_mmstar_average", named) == "max"


def test_the_labels_of_the_data_are_the_metrics_of_multilabel() -> None:
    sample = {"json": b'{"labels": {"Nodule": 1, "Cyst": 0}}'}
    assert "auroc_*" in MultiLabel().metrics()
    known = MultiLabel().metrics(iter([sample]))
    assert {"auroc_mean", "auroc_Nodule", "f1_Cyst"} <= {*known} and "auroc_*" not in known


def test_the_key_leaves_the_id_of_a_run_as_it_was_and_is_kept_in_its_config(tmp_path: Path) -> None:
    from tasks.runs.identity import identity

    plain = digits_config(tmp_path, tmp_path)
    with_best = digits_config(tmp_path, tmp_path, "evaluate.best=zero_shot_top1")
    assert identity(plain, []) == identity(with_best, [])
    (tmp_path / "kept.yaml").write_text(configs.dump(with_best))
    assert configs.reload(tmp_path / "kept.yaml") == with_best
