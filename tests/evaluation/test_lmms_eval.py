"""lmms-eval beside a checkpoint: what it may ask over HTTP, what becomes of its figures, and the real package."""

from __future__ import annotations

import base64
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tasks.core.errors import DataError
from tasks.evaluation.checkpoint import LoadedCheckpoint
from tasks.evaluation.contract import CheckpointLocation
from tasks.evaluation.lmms_eval import LmmsEval, figures_of, serving
from tests.models.examples import picture
from tests.models.test_vlm import learnt

VARIABLE = "TARMAC_LMMS_EVAL_PYTHON"
"""The interpreter of an environment with lmms-eval, which a test may use."""
STAND_IN = """
import json, pathlib, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
name, folder = given["--tasks"], pathlib.Path(given["--output_path"])
asked = folder.parent / "asked.txt"
asked.write_text((asked.read_text() if asked.exists() else "") + name + " ")
if name == "broken" and not (folder.parent / "mended").exists():
    print("no such data set"); sys.exit(1)
results = {"results": {name: {"alias": name, "accuracy,none": 0.25, "accuracy_stderr,none": 0.1}}}
(folder / "x_results.json").write_text(json.dumps(results | {"n-samples": {name: {"effective": 4}}}))
"""


class Parrot:
    """Says how many pictures it was shown, and what it was told last."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def place(self) -> CheckpointLocation:
        return CheckpointLocation(self.run, self.run / "checkpoints/step_00000005", 5)

    def reply(self, messages: Sequence[tuple[str, str]], pictures: Sequence[Any], most_tokens: int) -> str:
        return f"{len(pictures)} {messages[-1][1]}"[:most_tokens]


def ask(port: int, content: Any, most: int = 99) -> str:
    request = {"messages": [{"role": "user", "content": content}], "max_tokens": most}
    address = f"http://127.0.0.1:{port}/v1/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(address, json.dumps(request).encode())) as answer:
        said: str = json.load(answer)["choices"][0]["message"]["content"]
    return said


def test_questions_and_pictures_reach_the_model_and_failures_are_remembered(tmp_path: Path) -> None:
    uri = f"data:image/png;base64,{base64.b64encode(picture(1)).decode()}"
    shown = [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": "Which?"}]
    with serving(Parrot(tmp_path), 12) as server:  # type: ignore[arg-type]
        assert ask(server.server_port, "Hello") == "0 Hello"
        assert ask(server.server_port, shown) == "1 <image>Whi", "no longer than the task may"
        assert ask(server.server_port, "Hello", 3) == "0 H" and not server.failures
        far = [{"type": "image_url", "image_url": {"url": "http://example.org/a.png"}}]
        with pytest.raises(urllib.error.HTTPError):
            ask(server.server_port, far)
        assert server.failures == ["ValueError: a picture is not a data URI, and nothing is downloaded here"]


def test_each_task_is_a_process_and_what_is_done_is_kept(tmp_path: Path) -> None:
    module = tmp_path / "lmms_eval.py"
    module.write_text(STAND_IN)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec "{sys.executable}" "{module}" "$@"\n')
    python.chmod(0o755)
    task = LmmsEval(names=["first", "broken", "last"], python=str(python))
    with pytest.raises(DataError, match="no such data set"):
        task.evaluate(Parrot(tmp_path))  # type: ignore[arg-type]
    (kept,) = tmp_path.glob("evaluations/*/lmms_eval-*")
    (kept / "mended").touch()
    outcome = task.evaluate(Parrot(tmp_path))  # type: ignore[arg-type]
    assert outcome.metrics == {"first_accuracy": 0.25, "broken_accuracy": 0.25, "last_accuracy": 0.25}
    assert outcome.samples == 12
    assert (kept / "asked.txt").read_text().split() == ["first", "broken", "broken", "last"]


def test_results_without_a_number_are_told() -> None:
    with pytest.raises(DataError, match="its results contain no number"):
        figures_of({"results": {"a": {"alias": "a", "accuracy,none": float("nan")}}}, "a")


LOCAL_TASK = """
task: pictures_seen
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_visual: !function utils.pictures
doc_to_text: !function utils.question
doc_to_target: answer
generation_kwargs: {{max_new_tokens: 16, temperature: 0, do_sample: false}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""
UTILS = """
from PIL import Image
def pictures(doc): return [Image.open(doc["picture"]).convert("RGB")]
def question(doc, lmms_eval_specific_kwargs=None): return doc["question"]
"""


@pytest.mark.proof
@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no interpreter with lmms-eval")
def test_the_real_package_judges_a_model_by_what_it_writes(tmp_path: Path) -> None:
    """Of four questions it is to write to three what it does write, asked without lmms-eval."""
    place = CheckpointLocation(tmp_path, tmp_path / "checkpoints/step_00000005", 5)
    subject = LoadedCheckpoint(learnt(), torch.device("cpu"), "fp32", None, place)  # type: ignore[arg-type]
    folder = tmp_path / "tasks"
    folder.mkdir()
    rows = []
    for number in range(4):
        path = folder / f"{number}.png"
        path.write_bytes(picture(number))
        question = "Which is it, 0?"
        said = subject.reply([("user", f"<image>{question}")], [Image.open(path).convert("RGB")], 16)
        assert said.startswith("It is")
        rows.append({"picture": str(path), "question": question, "answer": said if number else "Another."})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "pictures_seen.yaml").write_text(LOCAL_TASK.format(data=folder / "rows.jsonl"))
    (folder / "utils.py").write_text(UTILS)
    task = LmmsEval(names=["pictures_seen"], python=os.environ[VARIABLE], include_path=str(folder))
    outcome = task.evaluate(subject)
    assert outcome.metrics == {"pictures_seen_exact_match": 0.75} and outcome.samples == 4
