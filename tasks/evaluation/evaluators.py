"""The evaluators there are. A new one is a file with such a class in it and a line in this table."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from tasks.core.errors import UsageError
from tasks.core.schema import TaskSpec
from tasks.evaluation.contract import Evaluator
from tasks.evaluation.retrieval import Retrieval
from tasks.evaluation.zero_shot import ZeroShot

EVALUATORS: Mapping[str, type[Evaluator]] = {"zero_shot": ZeroShot, "retrieval": Retrieval}


def load(task: TaskSpec) -> Evaluator:
    """The evaluator a task of the config asks for; UsageError names what is wrong with it and the fix."""
    kind = EVALUATORS.get(task.kind)
    if kind is None:
        raise UsageError(f"evaluate.tasks: unknown kind {task.kind!r}; {_instead(task.kind, EVALUATORS)}")
    try:
        return kind(**task.arguments)
    except ValidationError as error:
        mistake = error.errors(include_url=False)[0]
        raise UsageError(f"evaluate.tasks: {task.name}: {_worded(mistake, kind.model_fields)}") from None


def _worded(mistake: Any, known: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in mistake["loc"])
    if mistake["type"] == "extra_forbidden":
        return f"{key}: unknown argument; {_instead(key, known)}"
    if mistake["type"] == "value_error":
        return f"{key}: {mistake['ctx']['error']}"
    return f"{key}: {mistake['msg']}, not {mistake['input']!r}"


def _instead(word: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
