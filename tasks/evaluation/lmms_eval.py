"""Benchmarks of lmms-eval, which queries the checkpoint over HTTP on this machine only.

This way lmms-eval can have its own environment with its own versions, and needs no knowledge of the model: it
queries it like any server with OpenAI's interface. Each benchmark is a process of its own, because lmms-eval
writes results only at the end; finished benchmarks are kept, so that another try goes on with the next.
lmms-eval's retries turn failed requests into wrong answers; here a failed request fails the evaluation.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any, ClassVar

from PIL import Image
from pydantic import Field

from tasks.core.errors import DataError, TarmacError
from tasks.core.files import digest, read_json, write_json
from tasks.evaluation.command import run_program
from tasks.evaluation.contract import EvaluationOutcome, Evaluator, Members, Subject
from tasks.loader.decoders import decode_image
from tasks.models.recipes import Capability
from tasks.runs.folder import RunFolder

MARK = "<image>"
PATIENCE_S = 3600
"""How long lmms-eval waits for one answer; its default of ten seconds is too short for a CPU."""
Asked = tuple[list[tuple[str, str]], list[Image.Image], int]
"""Messages as (role, text), their pictures, and the most tokens of the answer."""


class LmmsEval(Evaluator):
    """The arguments of a task of kind `lmms_eval`."""

    needs: ClassVar[frozenset[Capability]] = frozenset({"generate"})
    judges_samples: ClassVar[bool] = False

    names: Annotated[list[Annotated[str, Field(pattern=r"^[\w.-]+$")]], Field(min_length=1)]
    """lmms-eval's tasks, such as `mmstar`; only those in which the model writes text."""
    python: str = sys.executable
    """The interpreter of the environment in which lmms-eval is installed."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """How many samples of each task are used, from its start; all by default."""
    most_tokens: Annotated[int, Field(ge=1)] = 1024
    """The longest answer, even where a task allows longer ones."""
    include_path: str | None = None
    """A folder with descriptions of your own tasks."""

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
        place = subject.place()
        options = self.model_dump(include={"limit", "most_tokens", "include_path"})  # they change the figures
        kept = RunFolder(place.run).evaluation(place.step, "any").parent / f"lmms_eval-{digest(options)[:8]}"
        metrics: dict[str, float] = {}
        samples = 0
        for name in self.names:
            path = kept / name / "figures.json"
            if not path.exists():
                write_json(path, self._run_task(subject, name, kept / name))
            found = read_json(path)
            metrics |= found["metrics"]
            samples += found["samples"]
        return EvaluationOutcome(metrics, "", samples)

    def _run_task(self, subject: Subject, name: str, folder: Path) -> Mapping[str, Any]:
        """Compute the figures of one task in a process of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        before = set(folder.rglob("*_results.json"))
        with serving(subject, self.most_tokens) as server:
            settings = {
                "model_version": "tarmac",
                "base_url": f"http://127.0.0.1:{server.server_port}/v1",
                "api_key": "none",
                "num_concurrent": 1,
                "max_retries": 1,
                "timeout": PATIENCE_S,
                "httpx_trust_env": False,
            }
            command = [self.python, "-m", "lmms_eval", "--model", "openai", "--tasks", name]
            command += ["--model_args", ",".join(f"{key}={value}" for key, value in settings.items())]
            command += ["--output_path", str(folder), "--batch_size", "1"]
            command += ["--limit", str(self.limit)] if self.limit is not None else []
            command += ["--include_path", self.include_path] if self.include_path is not None else []
            run_program(command)
            if server.failures:
                raise DataError(
                    f"lmms_eval: {name}: {len(server.failures)} requests failed: {server.failures[0]}"
                )
        written = sorted(set(folder.rglob("*_results.json")) - before)
        if not written:
            raise DataError(f"lmms_eval: {name}: it succeeded but wrote no results into {folder}")
        return figures_of(read_json(written[-1]), name)


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


class ChatServer(ThreadingHTTPServer):
    """Answers chat completions with one checkpoint, one after the other, and records failures."""

    daemon_threads = True

    def __init__(self, subject: Subject, most_tokens: int) -> None:
        super().__init__(("127.0.0.1", 0), ChatHandler)
        self.subject, self.most_tokens = subject, most_tokens
        self.turn = threading.Lock()
        self.failures: list[str] = []


@contextmanager
def serving(subject: Subject, most_tokens: int) -> Iterator[ChatServer]:
    """Run a server on this machine's loopback interface within the context."""
    with ChatServer(subject, most_tokens) as server:
        thread = threading.Thread(target=server.serve_forever, name="lmms-eval-server", daemon=True)
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
            messages, pictures, most = asked_by(json.loads(body))
            with self.server.turn:
                reply = self.server.subject.reply(messages, pictures, min(most, self.server.most_tokens))
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


def asked_by(request: Mapping[str, Any]) -> Asked:
    """Parse the request of a chat completion; ValueError or DataError for pictures that it does
    not contain."""
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
    return messages, pictures, int(request.get("max_tokens") or request.get("max_completion_tokens") or 64)


def _picture(url: str) -> Image.Image:
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise ValueError("a picture is not a data URI, and nothing is downloaded here")
    try:
        return decode_image(base64.b64decode(data, validate=True))
    except binascii.Error as error:
        raise ValueError(f"a picture is not base64: {error}") from error
