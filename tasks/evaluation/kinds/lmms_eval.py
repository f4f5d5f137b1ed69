"""Benchmarks of lmms-eval, which queries the checkpoint over HTTP on this machine only.

This way lmms-eval can have its own environment with its own versions, and needs no knowledge of the model: it
queries it like any server with OpenAI's interface. Each benchmark is a process of its own, because lmms-eval
writes results only at the end; finished benchmarks are kept, so that another try goes on with the next.
lmms-eval sends many requests at once, and the server joins them to passes of `batch_size`.
lmms-eval's retries turn failed requests into wrong answers; here a failed request fails the evaluation.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import queue
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from PIL import Image
from pydantic import Field, model_validator

from tasks.core.errors import DataError, TarmacError
from tasks.core.files import digest, read_json, read_lines, write_json
from tasks.evaluation.contract import ChatRequest, EvaluationOutcome, Evaluator, Members, Subject
from tasks.evaluation.kinds.benchmark_prompts import NANOVLM, QuestionFormat
from tasks.evaluation.kinds.command import run_program
from tasks.evaluation.samples import Formula, JudgedSamples
from tasks.loader.decoders import decode_image
from tasks.models.recipes import Capability
from tasks.runs.folder import RunFolder

MARK = "<image>"
PATIENCE_S = 3600
"""How long lmms-eval waits for one answer; its default of ten seconds is too short for a CPU."""
JOIN_S = 0.02
"""How long a pass that is not full waits for one more request."""
END_POLL_S = 0.05
"""How often the server looks whether it is to end."""
Samples = Annotated[int, Field(ge=1)]


class LmmsEval(Evaluator):
    """The arguments of a task of kind `lmms_eval`."""

    needs: ClassVar[frozenset[Capability]] = frozenset({"generate"})
    judges_samples: ClassVar[bool] = False

    names: Annotated[list[Annotated[str, Field(pattern=r"^[\w.-]+$")]], Field(min_length=1)]
    """lmms-eval's tasks, such as `mmstar`; only those in which the model writes text."""
    python: str = sys.executable
    """The interpreter of the environment in which lmms-eval is installed."""
    batch_size: Annotated[int, Field(ge=1)] = 16
    """How many questions the model answers in one pass."""
    limit: Samples | dict[str, Samples] | None = None
    """How many samples are used, from the start: one number for each of `names`, or a number by name. All by
    default, and of names that are not given."""
    prompts: Literal["nanovlm", "none"] = "nanovlm"
    """With `nanovlm`, benchmarks that nanoVLM asks in words of its own are asked in these; with `none`, all
    are asked in lmms-eval's."""
    most_tokens: Annotated[int, Field(ge=1)] = 1024
    """The longest answer, even where a task allows longer ones."""
    include_path: str | None = None
    """A folder with descriptions of your own tasks."""

    @model_validator(mode="after")
    def _limits_are_of_names(self) -> Self:
        unknown = sorted(set(self.limit) - set(self.names)) if isinstance(self.limit, dict) else []
        if unknown:
            raise ValueError(f"limit: {unknown[0]} is not among names ({', '.join(self.names)})")
        return self

    def limit_of(self, name: str) -> int | None:
        """Return how many samples of one of `names` are used; None for all."""
        return self.limit.get(name) if isinstance(self.limit, dict) else self.limit

    def format_of(self, name: str) -> QuestionFormat | None:
        """Return how the questions of one of `names` are changed; None where they are not."""
        return NANOVLM.get(name) if self.prompts == "nanovlm" else None

    def metrics(self, samples: Iterator[Members] | None = None) -> Sequence[str]:
        """Return a prefix per benchmark; only lmms-eval knows the metrics of each."""
        return [f"{name}_*" for name in self.names]

    @property
    def downloads(self) -> str:
        return (
            f"lmms_eval downloads the data of {', '.join(self.names)} itself; run it once by {self.python} "
            "with `limit: 1` where there is a network"
        )

    def evaluate(self, subject: Subject) -> EvaluationOutcome:
        """Return `<task>_<metric>` for each number of lmms-eval, by nanoVLM's names.

        Raises DataError where a task fails or gives none; the next try does not repeat the finished ones.
        """
        metrics: dict[str, float] = {}
        samples = 0
        logs: list[Mapping[str, Any]] = []
        for name in self.names:
            folder = self._kept(subject, name)
            path = folder / "figures.json"
            if not path.exists():
                write_json(path, self._run_task(subject, name, folder))
            found = read_json(path)
            metrics |= found["metrics"]
            samples += found["samples"]
            logs += found.get("logs", [])
        changed = ", ".join(name for name in self.names if self.format_of(name) is not None)
        notes = [f"nanoVLM's prompts: {changed}"] if changed else []
        return EvaluationOutcome(metrics, "", samples, notes=notes, by_sample=judged_documents(logs))

    def _kept(self, subject: Subject, name: str) -> Path:
        """The folder of a benchmark's figures, by the options that change them."""
        options = self.model_dump(include={"most_tokens", "include_path"}) | {"limit": self.limit_of(name)}
        if self.format_of(name) is not None:
            options["prompts"] = self.prompts
        place = subject.place()
        of_step = RunFolder(place.run).evaluation(place.step, "any").parent
        return of_step / f"lmms_eval-{digest(options)[:8]}" / name

    def _serving(self, subject: Subject, name: str) -> AbstractContextManager[ChatServer]:
        return serving(subject, self.batch_size, self.most_tokens, self.format_of(name))

    def _run_task(self, subject: Subject, name: str, folder: Path) -> Mapping[str, Any]:
        """Compute the figures of one task in a process of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        before = set(folder.rglob("*.json*"))
        limit = self.limit_of(name)
        under_way = 2 * self.batch_size  # the requests of one pass come in while the model is at another
        with self._serving(subject, name) as server:
            settings = {
                "model_version": "tarmac",
                "base_url": f"http://127.0.0.1:{server.server_port}/v1",
                "api_key": "none",
                "num_concurrent": under_way,
                "adaptive_max_concurrency": under_way,  # the most that lmms-eval sends in any case
                "max_retries": 1,
                "timeout": PATIENCE_S,
                "httpx_trust_env": False,
            }
            command = [self.python, "-m", "lmms_eval", "--model", "openai", "--tasks", name]
            command += ["--model_args", ",".join(f"{key}={value}" for key, value in settings.items())]
            command += ["--output_path", str(folder), "--batch_size", "1"]
            command += ["--limit", str(limit)] if limit is not None else []
            command += ["--include_path", self.include_path] if self.include_path is not None else []
            run_program([*command, "--log_samples"])
            if server.failures:
                raise DataError(
                    f"lmms_eval: {name}: {len(server.failures)} requests failed: {server.failures[0]}"
                )
        written = sorted(set(folder.rglob("*_results.json")) - before)
        if not written:
            raise DataError(f"lmms_eval: {name}: it succeeded but wrote no results into {folder}")
        figures = figures_of(read_json(written[-1]), name)
        return {**figures, "logs": read_logs(set(folder.rglob("*_samples_*.jsonl")) - before, figures)}


def figures_of(results: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return `metrics` by `<task>_<metric>`, and their number of `samples`; DataError without a number.

    Source: lmms-eval writes `results[task]["metric,filter"]`, of which nanoVLM's run_evaluation.py takes the
    part before the comma.
    """
    metrics = {
        f"{task}_{key.partition(',')[0]}": float(value)
        for task, found in results.get("results", {}).items()
        for key, value in found.items()
        if "_stderr" not in key and isinstance(value, int | float) and math.isfinite(value)
        if key.partition(",")[1]
    }
    if not metrics:
        raise DataError(f"lmms_eval: {name}: its results contain no number")
    counted = results.get("n-samples", {}).values()
    return {"metrics": metrics, "samples": sum(int(one.get("effective", 0)) for one in counted)}


def read_logs(paths: Iterable[Path], figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return, for each of lmms-eval's logs of samples, the values of each metric by document.

    A log holds whatever a benchmark's own code returns for a document: a number, or an object that may have a
    `score`. Only values whose mean is the metric are kept, since some benchmarks average otherwise. Source:
    `_process_document_results` in lmms-eval's evaluator.py, and process_results of its benchmarks.
    """
    logs = []
    for path in sorted(paths):
        task = path.stem.rpartition("_samples_")[2]
        rows = sorted(read_lines(path)[0], key=lambda row: str(row.get("doc_id")))
        documents = [f"{task} {row.get('doc_id')}" for row in rows]
        columns = {
            metric: values
            for metric, value in figures["metrics"].items()
            if metric.startswith(f"{task}_") and (values := _scores(rows, metric[len(task) + 1 :]))
            if math.isclose(math.fsum(values) / len(values), value, rel_tol=1e-9, abs_tol=1e-12)
        }
        if columns and len(set(documents)) == len(documents):
            hashes = [str(row.get("doc_hash")) for row in rows]
            logs.append({"documents": documents, "hashes": hashes, "columns": columns})
    return logs


def _scores(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return a metric's value for each document; nothing where one has none."""
    given = [row.get(name) for row in rows]
    found = [one.get("score") if isinstance(one, dict) else one for one in given]
    values = [float(one) for one in found if isinstance(one, int | float)]
    return values if len(values) == len(rows) else []


def judged_documents(logs: Sequence[Mapping[str, Any]]) -> JudgedSamples | None:
    """Return one row per document of all benchmarks; None without any. A row's item is the hash of the
    document's content."""
    documents = [document for log in logs for document in log["documents"]]
    hashes = [one for log in logs for one in log["hashes"]]
    columns = {}
    start = 0
    for log in logs:
        end = start + len(log["documents"])
        for name, values in log["columns"].items():
            columns[name] = np.full(len(documents), np.nan)
            columns[name][start:end] = values
        start = end
    formulas = {name: Formula("mean", [name]) for name in columns}
    return JudgedSamples(documents, columns, formulas, hashes, data="lmms_eval") if columns else None


@dataclass(frozen=True)
class WaitingRequest:
    """A request, and where its answer will be."""

    request: ChatRequest
    most_tokens: int
    answer: Future[str] = field(default_factory=Future)


class RequestJoiner:
    """Answers requests that come in at the same time in one pass of the model.

    A request that comes alone waits JOIN_S for others, which is little beside the answer that it gets. Only
    requests for equally long answers share a pass: a longer one would hold up the others.
    """

    def __init__(self, subject: Subject, most: int) -> None:
        """`most` is the number of requests that the model answers in one pass."""
        self._subject, self._most = subject, most
        self._came: queue.SimpleQueue[WaitingRequest | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="lmms-eval-model", daemon=True)

    def __enter__(self) -> RequestJoiner:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._came.put(None)
        self._thread.join()

    def reply(self, request: ChatRequest, most_tokens: int) -> str:
        """Return the model's answer; raises whatever the pass raised."""
        waiting = WaitingRequest(request, most_tokens)
        self._came.put(waiting)
        return waiting.answer.result()

    def _serve(self) -> None:
        waiting: list[WaitingRequest] = []
        while self._takes_more(waiting):
            most = waiting[0].most_tokens
            together = [one for one in waiting if one.most_tokens == most]
            waiting = [one for one in waiting if one.most_tokens != most]
            self._answer(together, most)

    def _takes_more(self, waiting: list[WaitingRequest]) -> bool:
        """Fill up `waiting` with what comes in; False at the end."""
        while len(waiting) < self._most:
            try:
                one = self._came.get(timeout=JOIN_S if waiting else None)
            except queue.Empty:
                break
            if one is None:
                return False
            waiting.append(one)
        return True

    def _answer(self, together: Sequence[WaitingRequest], most_tokens: int) -> None:
        try:
            replies = self._subject.replies([one.request for one in together], most_tokens)
        except Exception as error:  # noqa: BLE001 - each waiting request raises it
            for one in together:
                one.answer.set_exception(error)
        else:
            for one, reply in zip(together, replies, strict=True):
                one.answer.set_result(reply)


class ChatServer(ThreadingHTTPServer):
    """Answers chat completions with one checkpoint, and records failures."""

    daemon_threads = True
    request_queue_size = 128
    """As many requests may come at once; the kernel delays further connections by a second."""

    def __init__(self, joiner: RequestJoiner, most_tokens: int, asked_as: QuestionFormat | None) -> None:
        super().__init__(("127.0.0.1", 0), ChatHandler)
        self.joiner, self.most_tokens, self.asked_as = joiner, most_tokens, asked_as
        self.failures: list[str] = []


@contextmanager
def serving(
    subject: Subject, batch_size: int, most_tokens: int, asked_as: QuestionFormat | None = None
) -> Iterator[ChatServer]:
    """Run a server on this machine's loopback interface within the context, which changes questions as
    `asked_as` tells."""
    with RequestJoiner(subject, batch_size) as joiner, ChatServer(joiner, most_tokens, asked_as) as server:
        arguments = {"poll_interval": END_POLL_S}
        thread = threading.Thread(
            target=server.serve_forever, kwargs=arguments, name="lmms-eval-server", daemon=True
        )
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class ChatHandler(BaseHTTPRequestHandler):
    """OpenAI's `POST /v1/chat/completions`, as far as lmms-eval uses it."""

    server: ChatServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        try:
            request, most = asked_by(json.loads(body))
            if self.server.asked_as is not None:
                request = request._replace(messages=self.server.asked_as.applied(request.messages, MARK))
            reply = self.server.joiner.reply(request, min(most, self.server.most_tokens))
        except (TarmacError, KeyError, TypeError, ValueError, RuntimeError) as error:
            self.server.failures.append(f"{type(error).__name__}: {error}")
            self._send(400, {"error": {"message": str(error), "type": type(error).__name__}})
            return
        message = {"role": "assistant", "content": reply}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        about = {"id": "tarmac", "object": "chat.completion", "created": 0, "model": "tarmac"}
        self._send(200, {**about, "choices": [choice]})

    def _send(self, status: int, content: Mapping[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because there is one request per sample."""


def asked_by(request: Mapping[str, Any]) -> tuple[ChatRequest, int]:
    """Parse the request of a chat completion, and the most tokens of its answer; ValueError or DataError for
    pictures that it does not contain."""
    messages, pictures = [], []
    for message in request["messages"]:
        content = message["content"]
        is_text = isinstance(content, str)
        parts: Any = [{"type": "text", "text": content}] if is_text else content
        text = ""
        for part in parts:
            if part["type"] == "text":
                text += part["text"]
            elif part["type"] == "image_url":
                pictures.append(_picture(part["image_url"]["url"]))
                text += MARK
            else:
                raise ValueError(f"a part of type {part['type']} is neither text nor picture")
        messages.append((str(message["role"]), text))
    most = int(request.get("max_tokens") or request.get("max_completion_tokens") or 64)
    return ChatRequest(messages, pictures), most


def _picture(url: str) -> Image.Image:
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise ValueError("a picture is not a data URI, and nothing is downloaded here")
    try:
        return decode_image(base64.b64decode(data, validate=True))
    except binascii.Error as error:
        raise ValueError(f"a picture is not base64: {error}") from error
