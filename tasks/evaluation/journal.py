"""What an evaluation has computed so far, on disk, so that another try goes on where a killed one ended.

The evaluators know nothing of it: the journal stands between them and the checkpoint, and keeps what the
checkpoint computes, batch by batch, as it comes: embeddings, losses, answers. SIGKILL costs the batch in
hand. The arithmetic of an evaluator is done again, on the very same numbers, so the result is that of an
evaluation without a break. The price is a write per batch, without a flush: a machine that fails may lose
more, of which a torn end tells.

A file is a sequence of records: the length and the CRC32C of the content, then the content, which is a line
of JSON and raw bytes. The first record names the question that the rest belongs to.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from blake3 import blake3

from tasks.core.files import digest
from tasks.evaluation.contract import (
    START,
    Answered,
    BatchLoss,
    ChatRequest,
    CheckpointLocation,
    Embedded,
    Embeddings,
    Members,
    StreamPosition,
    Subject,
)

HEAD = struct.Struct("<II")
"""The length of a record's content in bytes, and its CRC32C."""


@dataclass(frozen=True)
class JournalEntry:
    """One piece of work: what it is about, as JSON, and its numbers."""

    about: dict[str, Any]
    data: bytes = b""


class EvaluationJournal:
    """The work that was done for one question, by stream, in its order.

    Nobody else may write the file: the evaluation's lease sees to that.
    """

    def __init__(self, path: Path, question: str) -> None:
        """Take up what is there for this very question; anything else there is removed. A torn end is cut."""
        self._path, self._question = path, question
        self._file: int | None = None
        self._kept: dict[str, list[JournalEntry]] = {}
        entries, end = _read(path)
        if not entries or entries[0].about != {"question": question}:
            path.unlink(missing_ok=True)
            return
        for entry in entries[1:]:
            self._kept.setdefault(str(entry.about.pop("stream")), []).append(entry)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.ftruncate(self._file, end)

    def take(self, stream: str) -> list[JournalEntry]:
        """Return the work that is there for a stream; once, because it may be large."""
        return self._kept.pop(stream, [])

    def append(self, stream: str, entry: JournalEntry) -> None:
        """Keep a piece of work; OSError where the disk is full."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            self._write({"question": self._question}, b"")
        self._write({**entry.about, "stream": stream}, entry.data)

    def _write(self, about: dict[str, Any], data: bytes) -> None:
        assert self._file is not None
        content = json.dumps(about, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n" + data
        record = memoryview(HEAD.pack(len(content), google_crc32c.value(content)) + content)
        while record:
            record = record[os.write(self._file, record) :]

    def close(self) -> None:
        """Leave the work for another try."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def remove(self) -> None:
        """Remove the work, once the result is there."""
        self.close()
        self._path.unlink(missing_ok=True)


def _read(path: Path) -> tuple[list[JournalEntry], int]:
    """Return the whole records of a file, and where they end."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    entries, end = [], 0
    while len(content) - end >= HEAD.size:
        length, checksum = HEAD.unpack_from(content, end)
        record = content[end + HEAD.size : end + HEAD.size + length]
        if len(record) < length or google_crc32c.value(record) != checksum:
            break
        line, _, data = record.partition(b"\n")
        if not line:  # zeros, whose checksum is that of no content
            break
        entries.append(JournalEntry(json.loads(line.decode("utf-8", "surrogatepass")), data))
        end += HEAD.size + length
    return entries, end


class JournaledSubject:
    """A `Subject` whose answers are kept, and those that are there already are not computed again."""

    def __init__(self, subject: Subject, journal: EvaluationJournal, at_once: int) -> None:
        """`at_once` is the number of texts that the subject embeds in one pass."""
        self._subject, self._journal, self._at_once = subject, journal, at_once
        self._streams = 0
        self._replies: dict[str, str] | None = None

    def place(self) -> CheckpointLocation:
        return self._subject.place()

    def held_out(self) -> str:
        return self._subject.held_out()

    def logit_scale(self) -> float:
        return self._subject.logit_scale()

    def tokens(self, texts: Sequence[str]) -> Sequence[bytes]:
        return self._subject.tokens(texts)

    def embed_images(
        self, split: str, extract: Callable[[Members], str], after: StreamPosition = START
    ) -> Iterator[Embedded]:
        return self._embedded(self._next_stream("images"), split, extract, after)

    def _embedded(
        self, stream: str, split: str, extract: Callable[[Members], str], after: StreamPosition
    ) -> Iterator[Embedded]:
        for kept in self._journal.take(stream):
            about = kept.about
            after = StreamPosition(*about["after"])
            yield Embedded(about["keys"], _rows(kept, len(about["keys"])), about["extracted"], after)
        for one in self._subject.embed_images(split, extract, after):
            about = {"keys": list(one.keys), "extracted": list(one.extracted), "after": one.after}
            self._journal.append(stream, JournalEntry(about, one.embeddings.tobytes()))
            yield one

    def embed_texts(self, texts: Sequence[str]) -> Embeddings:
        stream = self._next_stream("texts")
        parts = [_rows(kept, kept.about["texts"]) for kept in self._journal.take(stream)]
        for start in range(sum(map(len, parts)), len(texts), self._at_once):
            part = self._subject.embed_texts(texts[start : start + self._at_once])
            self._journal.append(stream, JournalEntry({"texts": len(part)}, part.tobytes()))
            parts.append(part)
        return np.concatenate(parts)

    def losses(self, split: str, after: StreamPosition = START) -> Iterator[BatchLoss]:
        return self._lost(self._next_stream("losses"), split, after)

    def _lost(self, stream: str, split: str, after: StreamPosition) -> Iterator[BatchLoss]:
        for kept in self._journal.take(stream):
            total, weight, samples, first_key, position = kept.about["loss"]
            after = StreamPosition(*position)
            yield BatchLoss(total, weight, samples, first_key, after)
        for one in self._subject.losses(split, after):
            figures = [one.sum, one.weight, one.samples, one.first_key, one.after]
            self._journal.append(stream, JournalEntry({"loss": figures}))
            yield one

    def answers(self, split: str, samples: int, most_tokens: int, skip: int = 0) -> Iterator[Answered]:
        return self._answered(self._next_stream("answers"), split, samples, most_tokens, skip)

    def _answered(
        self, stream: str, split: str, samples: int, most_tokens: int, skip: int
    ) -> Iterator[Answered]:
        for kept in self._journal.take(stream):
            skip += 1
            yield Answered(*kept.about["answer"])
        for one in self._subject.answers(split, samples, most_tokens, skip):
            answer = [one.key, one.question, one.expected, one.answer]
            self._journal.append(stream, JournalEntry({"answer": answer}))
            yield one

    def replies(self, requests: Sequence[ChatRequest], most_tokens: int) -> Sequence[str]:
        """Answer from what is kept for equal requests, in whichever order they come, and ask the rest."""
        stream = "replies"
        if self._replies is None:
            self._replies = {
                kept.about["request"]: kept.about["reply"] for kept in self._journal.take(stream)
            }
        names = [_name_of(request, most_tokens) for request in requests]
        missing = [place for place, name in enumerate(names) if name not in self._replies]
        asked = [requests[place] for place in missing]
        found = self._subject.replies(asked, most_tokens) if asked else []
        for place, reply in zip(missing, found, strict=True):
            self._journal.append(stream, JournalEntry({"request": names[place], "reply": reply}))
            self._replies[names[place]] = reply
        return [self._replies[name] for name in names]

    def _next_stream(self, kind: str) -> str:
        """The name of a stream: an evaluator asks for the same ones in the same order at each try."""
        self._streams += 1
        return f"{self._streams} {kind}"


def _rows(kept: JournalEntry, count: int) -> Embeddings:
    return np.frombuffer(kept.data, np.float32).reshape(count, -1)


def _name_of(request: ChatRequest, most_tokens: int) -> str:
    """Return a digest of all that shapes a reply."""
    pictures = [
        [one.mode, *one.size, blake3(one.tobytes()).hexdigest()]  # of pixels: files may differ in their head
        for one in request.pictures
    ]
    return digest([[list(message) for message in request.messages], pictures, most_tokens])
