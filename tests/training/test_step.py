"""What one step does: in parts or at once, scaled, clipped, averaged, part by part."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from timm.layers import BatchNormAct2d, SyncBatchNormAct

from tasks.core.errors import UsageError
from tasks.models.clip.clip import ClipTask
from tasks.models.task import Loss, Task
from tasks.training import devices
from tasks.training.blocks import lay_out_convolutions, synchronise_batch_norms
from tasks.training.checkpoints import _copy
from tasks.training.devices import random_state, set_random_state
from tasks.training.ranks import Ranks
from tasks.training.step import Step
from tests.training.helpers import make_run, model_bytes, rows, train_here
from tests.training.towers import SAMPLES, Meeting, Sum, Towers, batch, step_of, without_dropout

FEW = ("train.steps=6", "train.checkpoint_every=3", "evaluate.every=6", "train.log_every=1", "train.warmup=0")


def gradients(step: Step) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    step(0, batch())
    return {name: p.grad.clone() for name, p in step.task.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", [Meeting, Sum])
@pytest.mark.parametrize("size", [1, 5, SAMPLES // 2])
def test_parts_give_the_gradients_of_the_whole(kind: type[Task], size: int) -> None:
    whole = gradients(step_of(kind, without_dropout()))
    parts = gradients(step_of(kind, without_dropout(), micro_batch=size))
    assert set(whole) == set(parts) and len(whole) == 7
    for name, gradient in whole.items():
        assert torch.allclose(gradient, parts[name], rtol=1e-6, atol=1e-12), name


@pytest.mark.parametrize("kind", [Meeting, Sum])
def test_parts_give_the_loss_of_the_whole(kind: type[Task]) -> None:
    whole, parts = (step_of(kind, without_dropout(), **keys)(0, batch()) for keys in ({}, {"micro_batch": 5}))
    assert float(whole.loss) == pytest.approx(float(parts.loss), rel=1e-12)
    assert not parts.loss.requires_grad


def test_parts_draw_the_same_twice() -> None:
    """Or features would be another dropout's than the gradients that they are given."""
    seen: list[torch.Tensor] = []

    class Watched(Meeting):
        def encode(self, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
            features = super().encode(batch)
            seen.append(features["a"].detach())
            return features

    step_of(Watched, micro_batch=6)(0, batch())
    first, second, first_again, second_again = seen
    assert torch.equal(first, first_again) and torch.equal(second, second_again)


def test_adding_up_a_contrast_would_be_another_loss() -> None:
    """What the parts are encoded twice for."""
    model = without_dropout()
    whole, task = batch(), Meeting(model)
    halves = [{name: value[half] for name, value in whole.items()} for half in (slice(6), slice(6, 12))]
    summed = sum(float(task(half).sum.detach()) for half in halves)
    assert abs(summed - float(task(whole).sum.detach())) > 1


def test_a_locked_tower_is_left_alone_and_in_eval_mode() -> None:
    step = step_of(Meeting, freeze=["visual"], micro_batch=6)
    before = {name: value.clone() for name, value in step.task.model.state_dict().items()}
    for number in range(3):
        step(number, batch())
    with step.judging():
        assert not step.task.training
    model = step.task.model
    assert model.training and model.text.training and not any(m.training for m in model.visual.modules())
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"text.weight", "text.bias", "logit_scale"}
    with pytest.raises(UsageError, match="leaves nothing to train"):
        step_of(Meeting, freeze=["visual", "text", "logit_scale"])


def test_each_part_has_its_own_rate_and_warm_up() -> None:
    lr = {"visual": 0.1, "text": 0.2, "logit_scale": 0.2}
    warmup = {"visual": 0, "text": 4, "logit_scale": 4}
    step = step_of(Meeting, lr=lr, warmup=warmup, schedule="constant", cooldown=2)
    rates = [step(number, batch()).rates for number in range(10)]
    assert all(list(rate) == ["logit_scale", "text", "visual"] for rate in rates)
    assert [rate["visual"] for rate in rates] == pytest.approx([0.1] * 9 + [0.05])
    assert [rate["text"] for rate in rates] == pytest.approx([0.05, 0.1, 0.15, *[0.2] * 6, 0.1])


def test_gradients_are_clipped_together() -> None:
    step = step_of(Meeting, grad_clip=0.01)
    taken = step(0, batch())
    norms = [p.grad.norm() for p in step.task.model.parameters() if p.grad is not None]
    assert float(taken.logs["grad_norm"]) > 0.01
    assert float(torch.stack(norms).norm()) == pytest.approx(0.01, rel=1e-4)


def test_the_average_is_judged_and_follows_slower() -> None:
    step = step_of(Meeting, ema=0.9)
    average = Towers().state_dict()
    for number in range(20):
        if number < 10:
            step(number, batch())
            decay = min(0.9, (1 + number) / (10 + number))
            theirs = step.task.model.state_dict()
            average = {name: value * decay + theirs[name] * (1 - decay) for name, value in average.items()}
    mine = step.model.state_dict()
    assert all(torch.allclose(mine[name], value, rtol=1e-9) for name, value in average.items())
    assert step.model is not step.task.model
    with torch.no_grad(), step.judging() as loss_of:
        judged = float(loss_of(batch()).sum)
    for mine in (step.model, step.task.model):
        mine.load_state_dict(average)
    step.task.eval()
    assert judged == pytest.approx(float(step.task(batch()).sum.detach()))


def test_a_step_that_overflows_changes_nothing_and_halves_the_scale() -> None:
    class Overflowing(Sum):
        factor = math.inf

        def forward(self, batch: Mapping[str, Any]) -> Loss:
            loss = super().forward(batch)
            return loss._replace(sum=loss.sum * self.factor)

    step = step_of(Overflowing, precision="fp16", ema=0.5, warmup=0)
    before = {name: value.clone() for name, value in step.task.model.state_dict().items()}
    assert step(0, batch()).overflow == (True, 32768)
    for model in (step.model, step.task.model):
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    other = step_of(Overflowing, precision="fp16", ema=0.5)
    other.load(json_free_copy(step.state()))
    assert other(1, batch()).overflow == (True, 16384), "the scale is part of the state"
    Overflowing.factor = 1.0
    assert step(1, batch()).overflow == (False, 32768)
    assert not torch.equal(step.task.model.text.weight, before["text.weight"])


def json_free_copy(state: dict[str, Any]) -> dict[str, Any]:
    """By the way of a file, as a checkpoint."""
    import io

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def test_fp16_trains_and_tells_of_skipped_steps(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, calls = ClipTask.forward, iter(range(100))

    def overflows_at_three(task: ClipTask, batch: Any) -> Loss:
        loss = forward(task, batch)
        return loss._replace(sum=loss.sum * (math.inf if next(calls) == 2 else 1))

    monkeypatch.setattr(ClipTask, "forward", overflows_at_three)
    run = make_run(digits_dataset, tmp_path, *FEW, "train.precision=fp16", "train.checkpoint_every=6")
    assert train_here(run) == 6
    skipped = rows(run, "skipped")
    assert list(skipped) == [3] and skipped[3]["train/skipped"] == 1
    assert skipped[3]["train/loss_scale"] == 32768
    losses = {step: row.get("train/loss") for step, row in rows(run, "train").items()}
    assert losses.pop(3) is None and all(loss and math.isfinite(loss) for loss in losses.values())
    assert None not in rows(run, "train")[3].values(), "no loss is no loss that is not finite"


def test_everything_at_once_resumes_to_the_bit(digits_dataset: Path, tmp_path: Path) -> None:
    every = (
        "train.micro_batch=12",
        "train.lr={vision: 1.0e-3, text: 5.0e-4, temperature: 1.0e-3}",
        "train.warmup={vision: 2, text: 0.5, temperature: 0}",
        "train.schedule=constant",
        "train.cooldown=2",
        "train.grad_clip=1.0",
        "train.ema=0.9",
        "train.precision=fp16",
    )
    run = make_run(digits_dataset, tmp_path, *FEW, *every)
    assert train_here(run) == 6
    found, weights = rows(run, "train"), model_bytes(run, 6)
    state = torch.load(run.checkpoint(6) / "state.pt", weights_only=True)
    assert set(state) == {"optimizer", "scaler", "weights", "feed", "random"}
    trained, judged = state["weights"], load_file(run.checkpoint(6) / "model.safetensors")
    assert not torch.equal(trained["text_projection"], judged["text_projection"])
    assert found[6]["train/lr_vision"] == pytest.approx(5e-4) and found[6]["train/lr_text"] == pytest.approx(
        2.5e-4
    )
    assert found[1]["train/grad_norm"] > 0
    shutil.rmtree(run.checkpoint(6))
    rest = [line for line in run.metrics.read_text().splitlines() if json.loads(line)["train/step"] <= 3]
    run.metrics.write_text("\n".join(rest) + "\n")
    assert train_here(run) == 6
    assert model_bytes(run, 6) == weights
    again = torch.load(run.checkpoint(6) / "state.pt", weights_only=True)
    assert all(torch.equal(trained[name], again["weights"][name]) for name in trained)
    assert rows(run, "train")[6]["train/loss"] == found[6]["train/loss"]
    assert rows(run, "val")[6]["val/loss"] > 0


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"cooldown": 5}, "cooldown: has an effect only with schedule: constant"),
        ({"micro_batch": SAMPLES}, r"micro_batch: has an effect only below batch_size \(12\)"),
        ({"ema": 1.0}, "less than 1"),
        ({"lr": {"vision": -1.0}}, "greater than or equal to 0"),
    ],
)
def test_keys_without_effect_are_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        step_of(Meeting, **keys)


class Normed(Towers):
    """With batch norms of torch and of timm, whose own holds an activation."""

    def __init__(self) -> None:
        super().__init__()
        inner = torch.nn.Sequential(torch.nn.BatchNorm1d(5), torch.nn.Dropout(0.0))
        self.visual = torch.nn.Sequential(torch.nn.Linear(6, 5), inner, torch.nn.Linear(5, 4)).double()
        self.unused = BatchNormAct2d(3)


def test_batch_norms_are_of_all_ranks_where_that_can_be() -> None:
    model = Normed()
    alone = step_of(Meeting, model, sync_batch_norm=True)
    assert type(alone.task.model.visual[1][0]) is torch.nn.BatchNorm1d, "one rank has all of the batch"
    with pytest.raises(UsageError, match=r"train\.sync_batch_norm: has no effect on this model"):
        step_of(Meeting, sync_batch_norm=True)
    with pytest.raises(
        UsageError, match=r"train\.sync_batch_norm: torch exchanges statistics between GPUs only"
    ):
        step_of(Meeting, model, Ranks(0, 2), sync_batch_norm=True)
    before = model.state_dict()
    synchronise_batch_norms(model, 2, torch.device("cuda"))
    kinds = {type(part) for part in model.modules() if isinstance(part, torch.nn.SyncBatchNorm)}
    assert kinds == {torch.nn.SyncBatchNorm, SyncBatchNormAct}
    assert isinstance(model.unused.act, torch.nn.ReLU)
    assert {name: value.data_ptr() for name, value in model.state_dict().items()} == {
        name: value.data_ptr() for name, value in before.items()
    }


class Convolved(Towers):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        layers = (
            *(torch.nn.Unflatten(1, (2, 1, 3)), torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.ReLU()),
            *(torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(12, 4)),
        )
        self.visual = torch.nn.Sequential(*layers).double()


def test_convolutions_with_their_channels_last_train_and_resume_alike() -> None:
    plain, laid_out, resumed = (Convolved() for _ in range(3))
    for model in (laid_out, resumed):
        lay_out_convolutions(model)
        assert not model.visual[3].weight.is_contiguous()
    expected = gradients(step_of(Meeting, plain))
    step = step_of(Meeting, laid_out)
    for name, gradient in gradients(step).items():
        assert torch.allclose(gradient, expected[name], rtol=1e-6, atol=1e-12), name
    saved = _copy({"model": laid_out.state_dict(), **step.state(), "random": random_state()}, {})
    moments = [one["exp_avg"] for one in saved["optimizer"]["state"].values()]
    assert all(one.is_contiguous() for one in (*saved["model"].values(), *moments)), "as files hold them"
    step(1, batch())
    again = step_of(Meeting, resumed)
    resumed.load_state_dict(saved["model"])
    again.load(saved)
    set_random_state(saved["random"])
    for parameter, values in again._optimizer.state.items():
        assert values["exp_avg"].stride() == parameter.stride()
    again(1, batch())
    ends = (laid_out.state_dict(), resumed.state_dict())
    assert all(torch.equal(one, other) for one, other in zip(*(end.values() for end in ends), strict=True))


def test_autocast_is_what_the_precision_says() -> None:
    device = devices.Device(torch.device("cpu"), "fp16")
    with device.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float16
