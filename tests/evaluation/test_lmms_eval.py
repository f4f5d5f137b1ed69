"""lmms-eval beside a checkpoint: what it may ask over HTTP, what becomes of its figures, and the real package."""

from __future__ import annotations

import base64
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tasks.core.errors import DataError, UsageError
from tasks.core.schema import TaskSpec
from tasks.evaluation import evaluators
from tasks.evaluation.checkpoint import LoadedCheckpoint
from tasks.evaluation.contract import ChatRequest, CheckpointLocation
from tasks.evaluation.journal import EvaluationJournal, JournaledSubject
from tasks.evaluation.kinds import lmms_eval
from tasks.evaluation.kinds.benchmark_prompts import NANOVLM
from tasks.evaluation.kinds.lmms_eval import LmmsEval, asked_by, figures_of, serving
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
(folder / "given.json").write_text(json.dumps(given))
results = {"results": {name: {"alias": name, "accuracy,none": 0.25, "odd,none": 0.7, "accuracy_stderr,none": 0.1}}}
for n in (2, 0, 1, 3):
    row = {"doc_id": n, "doc_hash": f"hash {n}", "accuracy": {"score": float(n == 2)}, "odd": 0.5}
    with (folder / f"x_samples_{name}.jsonl").open("a") as log:
        print(json.dumps(row), file=log)
(folder / "x_results.json").write_text(json.dumps(results | {"n-samples": {name: {"effective": 4}}}))
"""


class Parrot:
    """Says how many pictures it was shown, and what it was told last."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.passes: list[int] = []

    def place(self) -> CheckpointLocation:
        return CheckpointLocation(self.run, self.run / "checkpoints/step_00000005", 5)

    def replies(self, requests: Sequence[ChatRequest], most_tokens: int) -> list[str]:
        self.passes.append(len(requests))
        return [f"{len(one.pictures)} {one.messages[-1][1]}"[:most_tokens] for one in requests]


def ask(port: int, content: Any, most: int = 99) -> str:
    request = {"messages": [{"role": "user", "content": content}], "max_tokens": most}
    address = f"http://127.0.0.1:{port}/v1/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(address, json.dumps(request).encode())) as answer:
        said: str = json.load(answer)["choices"][0]["message"]["content"]
    return said


def test_questions_and_pictures_reach_the_model_and_failures_are_remembered(tmp_path: Path) -> None:
    uri = f"data:image/png;base64,{base64.b64encode(picture(1)).decode()}"
    shown = [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": "Which?"}]
    with serving(Parrot(tmp_path), 3, 12) as server:  # type: ignore[arg-type]
        assert ask(server.server_port, "Hello") == "0 Hello"
        assert ask(server.server_port, shown) == "1 <image>Whi", "no longer than the task may"
        assert ask(server.server_port, "Hello", 3) == "0 H" and not server.failures
        far = [{"type": "image_url", "image_url": {"url": "http://example.org/a.png"}}]
        with pytest.raises(urllib.error.HTTPError):
            ask(server.server_port, far)
        assert server.failures == ["ValueError: a picture is not a data URI, and nothing is downloaded here"]


def ask_together(port: int, contents: Sequence[Any], most: Sequence[int]) -> list[str]:
    with ThreadPoolExecutor(len(contents)) as pool:
        return list(pool.map(partial(ask, port), contents, most))


def test_requests_that_come_together_are_answered_together_as_each_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a real model, with questions and answers of different lengths."""
    monkeypatch.setattr(lmms_eval, "JOIN_S", 0.2)
    place = CheckpointLocation(tmp_path, tmp_path / "checkpoints/step_00000005", 5)
    subject = LoadedCheckpoint(learnt(), torch.device("cpu"), "fp32", None, place)  # type: ignore[arg-type]
    contents, most = [], [16, 16, 16, 16, 3, 3]
    for number in range(6):
        uri = f"data:image/png;base64,{base64.b64encode(picture(number)).decode()}"
        text = {"type": "text", "text": f"Which is it, {number}?" + " Look." * number}
        contents.append([{"type": "image_url", "image_url": {"url": uri}}, text] if number else [text])
    alone = [
        subject.replies([asked_by({"messages": [{"role": "user", "content": one}]})[0]], length)[0]
        for one, length in zip(contents, most, strict=True)
    ]
    assert len(set(alone)) > 2
    answer, passes = type(subject).replies, []

    def counted(self: LoadedCheckpoint, requests: Sequence[ChatRequest], most: int) -> Sequence[str]:
        passes.append(len(requests))
        return answer(self, requests, most)

    monkeypatch.setattr(LoadedCheckpoint, "replies", counted)
    with serving(subject, 6, 99) as server:
        assert ask_together(server.server_port, contents, most) == alone
    assert sorted(passes) == [2, 4], "those for equally long answers in one pass"


def test_a_pass_is_never_larger_than_one_of_the_evaluation_and_its_failure_is_of_all(tmp_path: Path) -> None:
    parrot = Parrot(tmp_path)
    with serving(parrot, 3, 99) as server:  # type: ignore[arg-type]
        texts = [str(number) for number in range(8)]
        assert ask_together(server.server_port, texts, [99] * 8) == [f"0 {text}" for text in texts]
        assert max(parrot.passes) <= 3 and sum(parrot.passes) == 8

        def no_memory(requests: Sequence[ChatRequest], most_tokens: int) -> list[str]:
            raise RuntimeError("out of memory")

        parrot.replies = no_memory  # type: ignore[method-assign]
        with pytest.raises(urllib.error.HTTPError):
            ask(server.server_port, "Hello")
        assert server.failures == ["RuntimeError: out of memory"]


def test_nanovlm_asks_its_benchmarks_in_its_own_words(tmp_path: Path) -> None:
    """Source of the expected texts: nanoVLM's NanoVLMWrapper.apply_benchmark_formatting."""
    stars = "Which?\nOptions:\nA. x\nAnswer with the option's letter from the given choices directly."
    asked = NANOVLM["mmstar"].applied([("user", f"<image>{stars}")], "<image>")
    shown = "<image>Which?\nChoices:\nChoices:\nA. x\nAnswer with the letter directly."
    assert asked == [("user", shown), ("assistant", "Answer:")]
    (brief,) = NANOVLM["ocrbench"].applied([("user", "What is written?")], "<image>")
    assert brief == ("user", "What is written?\nGive a very brief answer.")
    exam = NANOVLM["mmmu_val"].applied([("user", "Question: Which?\nA. x")], "<image>")
    assert exam == [("user", " Which?\nChoices:\nA. x"), ("assistant", "Answer:")]
    ((_, document),) = NANOVLM["docvqa_val"].applied([("user", "<image><image>Who?")], "<image>")
    assert document.startswith("<image><image>Give a short and terse answer") and document.endswith(" Who?")
    assert "chartqa" not in NANOVLM, "nanoVLM's table names chartvqa, which is no task of lmms-eval"
    with serving(Parrot(tmp_path), 3, 99, NANOVLM["mmstar"]) as server:  # type: ignore[arg-type]
        assert ask(server.server_port, "Which?") == "0 Answer:", "the model continues this"
    task = LmmsEval(names=["mmstar", "chartqa"])
    assert task.format_of("mmstar") is NANOVLM["mmstar"] and task.format_of("chartqa") is None
    assert LmmsEval(names=["mmstar"], prompts="none").format_of("mmstar") is None


def test_limits_are_by_name(tmp_path: Path) -> None:
    task = LmmsEval(names=["mmstar", "mme"], limit={"mme": 7})
    assert (task.limit_of("mmstar"), task.limit_of("mme")) == (None, 7)
    assert LmmsEval(names=["mmstar"], limit=3).limit_of("mmstar") == 3
    with pytest.raises(UsageError, match=r"limit: mm is not among names \(mmstar\)"):
        evaluators.load_evaluator(
            TaskSpec.model_validate({"kind": "lmms_eval", "names": ["mmstar"], "limit": {"mm": 1}})
        )


def test_each_task_is_a_process_and_what_is_done_is_kept(tmp_path: Path) -> None:
    module = tmp_path / "lmms_eval.py"
    module.write_text(STAND_IN)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec "{sys.executable}" "{module}" "$@"\n')
    python.chmod(0o755)
    task = LmmsEval(names=["first", "broken", "last"], python=str(python), batch_size=3)
    with pytest.raises(DataError, match="no such data set"):
        task.evaluate(Parrot(tmp_path))  # type: ignore[arg-type]
    (kept,) = tmp_path.glob("evaluations/*/lmms_eval-*")
    (kept / "mended").touch()
    outcome = task.evaluate(Parrot(tmp_path))  # type: ignore[arg-type]
    names = ("first", "broken", "last")
    assert outcome.metrics == {f"{n}_{m}": v for n in names for m, v in (("accuracy", 0.25), ("odd", 0.7))}
    judged = outcome.by_sample
    assert judged is not None
    assert list(judged.columns) == ["first_accuracy", "broken_accuracy", "last_accuracy"], (
        "the mean of the log's `odd` is not the metric"
    )
    assert list(judged.keys[:4]) == ["first 0", "first 1", "first 2", "first 3"]
    assert judged.columns["first_accuracy"][:4].tolist() == [0, 0, 1, 0] and judged.items[2] == "hash 2"
    assert judged.rows_of("last_accuracy").tolist() == [False] * 8 + [True] * 4
    assert outcome.samples == 12
    assert (kept / "asked.txt").read_text().split() == ["first", "broken", "broken", "last"]
    assert not outcome.notes
    given = json.loads((kept / "first" / "given.json").read_text())
    assert "num_concurrent=6," in given["--model_args"] and "--limit" not in given
    changed = LmmsEval(names=["first", "mmstar"], python=str(python), limit={"first": 5})
    assert changed.evaluate(Parrot(tmp_path)).notes == ["nanoVLM's prompts: mmstar"]  # type: ignore[arg-type]
    (limited,) = (
        path for path in tmp_path.glob("evaluations/*/*/first/given.json") if path.parent.parent != kept
    )
    assert json.loads(limited.read_text())["--limit"] == "5", (
        "other figures, so nothing of the first was kept"
    )


ASKING = """
import json, pathlib, sys, urllib.request
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder = pathlib.Path(given["--output_path"])
address = dict(pair.split("=", 1) for pair in given["--model_args"].split(","))["base_url"]
for number in range(20):
    body = {"messages": [{"role": "user", "content": f"Question {number}?"}], "max_tokens": 30}
    with urllib.request.urlopen(urllib.request.Request(address + "/chat/completions", json.dumps(body).encode())) as answer:
        assert json.load(answer)["choices"][0]["message"]["content"] == f"0 Question {number}?"
    if number == 12 and not (folder / "again").exists():
        (folder / "again").touch()
        sys.exit(9)
(folder / "x_results.json").write_text(json.dumps({"results": {"first": {"accuracy,none": 0.5}}}))
"""


def test_a_benchmark_that_was_cut_short_asks_the_model_only_what_is_left(tmp_path: Path) -> None:
    """lmms-eval begins anew each time; the model answers nothing twice."""
    module = tmp_path / "lmms_eval.py"
    module.write_text(ASKING)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec "{sys.executable}" "{module}" "$@"\n')
    python.chmod(0o755)
    parrot = Parrot(tmp_path)
    task = LmmsEval(names=["first"], python=str(python), batch_size=1)
    for asked in (13, 20):
        kept = EvaluationJournal(tmp_path / "journal", "this question")
        subject = JournaledSubject(parrot, kept, 1)  # type: ignore[arg-type]
        if asked == 13:
            with pytest.raises(DataError, match="exit code 9"):
                task.evaluate(subject)
        else:
            assert task.evaluate(subject).metrics == {"first_accuracy": 0.5}
        kept.close()
        assert sum(parrot.passes) == asked


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
        shown = Image.open(path).convert("RGB")
        (said,) = subject.replies([ChatRequest([("user", f"<image>{question}")], [shown])], 16)
        assert said.startswith("It is")
        rows.append({"picture": str(path), "question": question, "answer": said if number else "Another."})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "pictures_seen.yaml").write_text(LOCAL_TASK.format(data=folder / "rows.jsonl"))
    (folder / "utils.py").write_text(UTILS)
    task = LmmsEval(names=["pictures_seen"], python=os.environ[VARIABLE], include_path=str(folder))
    outcome = task.evaluate(subject)
    assert outcome.metrics == {"pictures_seen_exact_match": 0.75} and outcome.samples == 4
    assert outcome.by_sample is not None
    assert outcome.by_sample.columns["pictures_seen_exact_match"].tolist() == [0, 1, 1, 1]
