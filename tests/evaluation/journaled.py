"""A subject that is slow and writes down what it is asked, in a process that a test kills.

python -m tests.evaluation.journaled JOURNAL ASKED RESULT
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.core.files import append_line
from tasks.evaluation.contract import (
    START,
    Answered,
    BatchLoss,
    ChatRequest,
    Embedded,
    Embeddings,
    Members,
    StreamPosition,
)
from tasks.evaluation.journal import EvaluationJournal, JournaledSubject

SAMPLES, BATCH, TEXTS = 600, 4, 40
OF_ALL = 3 * SAMPLES + 2 * TEXTS
"""Images, losses and answers of each sample, and texts and replies."""


class Slow:
    """Computes numbers that depend on sample and batch, and notes each sample as it begins to."""

    def __init__(self, asked: Path, pause_s: float = 0.0) -> None:
        self._asked, self._pause_s = asked, pause_s

    def _note(self, kind: str, names: Sequence[Any]) -> None:
        for name in names:
            append_line(self._asked, json.dumps({"asked": f"{kind} {name}"}))
        time.sleep(self._pause_s)

    def _batches(self, after: StreamPosition) -> Iterator[tuple[range, StreamPosition]]:
        for number in range(after.batches, SAMPLES // BATCH):
            yield range(number * BATCH, (number + 1) * BATCH), StreamPosition(number + 1, 0)

    def embed_images(
        self, split: str, extract: Callable[[Members], str], after: StreamPosition = START
    ) -> Iterator[Embedded]:
        for places, reached in self._batches(after):
            self._note("image", places)
            rows = np.random.default_rng(places.start).normal(size=(BATCH, 8)).astype(np.float32)
            yield Embedded(
                [f"ké{n}" for n in places], rows, [extract({"n": b"%d" % n}) for n in places], reached
            )

    def embed_texts(self, texts: Sequence[str]) -> Embeddings:
        self._note("text", texts)
        return np.random.default_rng(len(texts[0])).normal(size=(len(texts), 8)).astype(np.float32)

    def losses(self, split: str, after: StreamPosition = START) -> Iterator[BatchLoss]:
        for places, reached in self._batches(after):
            self._note("loss", places)
            yield BatchLoss(
                np.random.default_rng(places.start).normal(), 4.0, BATCH, f"k{places.start}", reached
            )

    def answers(self, split: str, samples: int, most_tokens: int, skip: int = 0) -> Iterator[Answered]:
        for places, _ in self._batches(START):
            if skip < BATCH:
                self._note("answer", places)
                for n in places[skip:]:
                    yield Answered(f"k{n}", f"Question {n}?", "yes", f"answer\n{n} ünd\udcff")
            skip = max(skip - BATCH, 0)

    def replies(self, requests: Sequence[ChatRequest], most_tokens: int) -> Sequence[str]:
        self._note("reply", [request.messages[0][1] for request in requests])
        return [f"reply to {request.messages[0][1]}" for request in requests]


def name_of(members: Members) -> str:
    return f"name {members['n'].decode()}"


def evaluated(subject: Any) -> Any:
    """All that an evaluator may ask for, as plain values."""
    images = Embedded.join(subject.embed_images("val", name_of))
    texts = subject.embed_texts([f"text {n}" for n in range(TEXTS)])
    requests = [ChatRequest([("user", f"request {n}")], []) for n in range(TEXTS)]
    replies = [subject.replies(requests[start : start + BATCH], 9) for start in range(0, TEXTS, BATCH)]
    return {
        "images": [list(images.keys), images.embeddings.tobytes().hex(), list(images.extracted)],
        "texts": texts.tobytes().hex(),
        "losses": [[one.sum, one.weight, one.first_key] for one in subject.losses("val")],
        "answers": [[one.key, one.answer] for one in subject.answers("val", SAMPLES, 9)],
        "replies": replies,
    }


def main(journal: str, asked: str, result: str) -> None:
    kept = EvaluationJournal(Path(journal), "this question")
    found = evaluated(JournaledSubject(Slow(Path(asked), 0.002), kept, BATCH))  # type: ignore[arg-type]
    Path(result).write_text(json.dumps(found))
    kept.remove()


if __name__ == "__main__":
    main(*sys.argv[1:])
