"""The table of evaluators. A new one is a file with its class and a line in this table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import ValidationError

from tasks.core.errors import UsageError, instead, list_mistakes
from tasks.core.mistakes import describe_mistakes
from tasks.core.schema import Config, TaskSpec
from tasks.evaluation.contract import Evaluator, Members
from tasks.evaluation.kinds.command import CommandEvaluator
from tasks.evaluation.kinds.linear_probe import LinearProbe
from tasks.evaluation.kinds.lmms_eval import LmmsEval
from tasks.evaluation.kinds.multilabel import MultiLabel
from tasks.evaluation.kinds.retrieval import Retrieval
from tasks.evaluation.kinds.validation_loss import ValidationLoss
from tasks.evaluation.kinds.vlm import Vlm
from tasks.evaluation.kinds.zero_shot import ZeroShot
from tasks.evaluation.results import full_name
from tasks.models import recipes
from tasks.models.needs import UnknownNeed

EVALUATORS: Mapping[str, type[Evaluator]] = {
    "zero_shot": ZeroShot,
    "retrieval": Retrieval,
    "multilabel": MultiLabel,
    "linear_probe": LinearProbe,
    "validation_loss": ValidationLoss,
    "vlm": Vlm,
    "command": CommandEvaluator,
    "lmms_eval": LmmsEval,
}
JUDGED: Mapping[recipes.Capability, str] = {
    "loss": "the loss",
    "embed": "embeddings",
    "generate": "texts that a model writes",
}


def check_tasks(config: Config) -> None:
    """Raise UsageError for a wrong task, for one that needs a capability that the config's recipe lacks, and
    for a best checkpoint by a metric that no task gives."""
    for task in tasks_of(config):
        evaluator = load_evaluator(task)
        if config.train is None:
            continue
        if lacking := sorted(evaluator.needs - recipes.check_recipe(config.train).gives):
            raise UsageError(
                f"evaluate.tasks: {task.name} judges {JUDGED[lacking[0]]}, but models of recipe "
                f"{config.train.recipe} give none; take it out of evaluate.tasks"
            )
    require_known(config, [name for task in tasks_of(config) for name in metrics_of(task)])


def metrics_of(task: TaskSpec, samples: Iterator[Members] | None = None) -> list[str]:
    """Return the full names of the metrics that a task may give; see `Evaluator.metrics`."""
    return [full_name(task.name, name) for name in load_evaluator(task).metrics(samples)]


def require_known(config: Config, names: Sequence[str]) -> None:
    """Raise UsageError where a key of `evaluate` names none of the metrics of these `names`; the keys of
    `metrics.jsonl`, which have a slash, are not checked."""
    evaluate = config.evaluate
    if evaluate is None:
        return
    asked = {
        "best": [] if evaluate.best is None else [evaluate.best.metric],
        "best_by": [one.metric for one in evaluate.best_by],
        "stop_when": [one.metric for one in evaluate.stop_when if "/" not in one.metric],
        "at_least": [*evaluate.at_least],
        "at_most": [*evaluate.at_most],
    }
    for key, metric in ((key, metric) for key, metrics in asked.items() for metric in metrics):
        if not any(_stands_for(name, metric) for name in names):
            meant = instead(metric, names)
            raise UsageError(f"evaluate.{key}: no task of evaluate.tasks gives {metric!r}; {meant}")


def is_better_low(tasks: Sequence[TaskSpec], metric: str) -> bool:
    """Whether the lowest value of a metric is the best one, according to the evaluator that gives it."""
    judges = (
        load_evaluator(task) for task in tasks if any(_stands_for(name, metric) for name in metrics_of(task))
    )
    return any(metric.endswith(judge.better_low) for judge in judges)


def tasks_of(config: Config) -> Sequence[TaskSpec]:
    return config.evaluate.tasks if config.evaluate is not None else ()


def _stands_for(name: str, metric: str) -> bool:
    return metric.startswith(name[:-1]) if name.endswith("*") else metric == name


def needs(config: Config) -> list[UnknownNeed]:
    """Return what the config's evaluations download themselves; UsageError for a wrong task."""
    found = {task.name: load_evaluator(task).downloads for task in tasks_of(config)}
    return [UnknownNeed(f"evaluate.tasks: {name}", why) for name, why in found.items() if why]


def load_evaluator(task: TaskSpec) -> Evaluator:
    """Return the evaluator of a task; UsageError names its mistake and the fix."""
    kind = EVALUATORS.get(task.kind)
    if kind is None:
        raise UsageError(
            f"evaluate.tasks: unknown kind {task.kind!r}; {instead(task.kind, list(EVALUATORS))}"
        )
    try:
        evaluator = kind(**task.arguments)
    except ValidationError as error:
        mistakes = describe_mistakes(error, kind, noun="argument")
        raise UsageError(list_mistakes(mistakes, f"evaluate.tasks: {task.name}")) from None
    if evaluator.dataset is not None and not evaluator.judges_samples:
        raise UsageError(
            f"evaluate.tasks: {task.name}: dataset: has no effect, because {task.kind} judges no samples of "
            "a dataset; take it out"
        )
    return evaluator
