"""An evaluation that is killed goes on where it was, to the very same numbers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from tasks.core.files import read_lines
from tasks.evaluation.contract import ChatRequest
from tasks.evaluation.journal import EvaluationJournal, JournaledSubject, JournalEntry
from tests.conftest import ROOT
from tests.evaluation.journaled import BATCH, OF_ALL, TEXTS, Slow, evaluated


def start(folder: Path) -> subprocess.Popen[bytes]:
    words = [str(folder / name) for name in ("journal", "asked.jsonl", "result.json")]
    return subprocess.Popen([sys.executable, "-m", "tests.evaluation.journaled", *words], cwd=ROOT)


def asked_in(folder: Path) -> Counter[str]:
    return Counter(row["asked"] for row in read_lines(folder / "asked.jsonl")[0])


def undisturbed(folder: Path) -> str:
    folder.mkdir()
    return json.dumps(
        evaluated(JournaledSubject(Slow(folder / "a"), EvaluationJournal(folder / "j", ""), BATCH))
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.proof)])
def test_sigkill_at_any_moment_costs_the_batch_in_hand(kills: int, tmp_path: Path) -> None:
    draws = random.Random(kills)
    for number in range(kills):
        process = start(tmp_path)
        target = OF_ALL * (number + draws.random()) / kills
        while asked_in(tmp_path).total() < target and process.poll() is None:
            time.sleep(0.01)
        time.sleep(draws.random() * 0.01)
        process.kill()
        process.wait()
        assert not (tmp_path / "result.json").exists() or number == kills - 1
    if not (tmp_path / "result.json").exists():
        assert start(tmp_path).wait() == 0
    assert (tmp_path / "result.json").read_text() == undisturbed(tmp_path / "whole"), "bit by bit the same"
    asked = asked_in(tmp_path)
    again = asked.total() - len(asked)
    assert len(asked) == OF_ALL and again <= kills * BATCH
    print(f"{kills} kills: {again} of {OF_ALL} asked again, {again / kills / OF_ALL:.2%} per kill")
    assert again / kills < 0.01 * OF_ALL
    assert not (tmp_path / "journal").exists()


def journal(path: Path, question: str = "q") -> EvaluationJournal:
    return EvaluationJournal(path, question)


def test_a_torn_end_is_cut_wherever_it_tears(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    first = journal(whole)
    for n in range(3):
        first.append("s", JournalEntry({"n": n}, b"\n\0data" * n))
    first.close()
    content = whole.read_bytes()
    for size in range(len(content) + 1):
        path = tmp_path / "torn"
        for rest in (b"", b"\0" * 40):
            path.write_bytes(content[:size] + rest)
            again = journal(path)
            found = again.take("s")
            assert [one.about["n"] for one in found] == list(range(len(found)))
            assert all(one.data == b"\n\0data" * n for n, one in enumerate(found))
            again.append("s", JournalEntry({"n": len(found)}))
            again.close()
            assert [one.about["n"] for one in journal(path).take("s")] == list(range(len(found) + 1))
            path.unlink()
    damaged = bytearray(content)
    damaged[-3] ^= 1
    whole.write_bytes(damaged)
    assert len(journal(whole).take("s")) == 2


def test_what_another_question_left_is_removed(tmp_path: Path) -> None:
    first = journal(tmp_path / "j", "one")
    first.append("s", JournalEntry({"n": 1}))
    first.close()
    other = journal(tmp_path / "j", "two")
    assert other.take("s") == [] and not (tmp_path / "j").exists()
    other.remove()
    assert not (tmp_path / "j").exists(), "nothing computed, nothing there"


def test_requests_are_answered_from_what_is_kept_in_whichever_order(tmp_path: Path) -> None:
    requests = [ChatRequest([("user", f"request {n}")], []) for n in range(TEXTS)]
    for step in (1, -1):
        kept = journal(tmp_path / "j")
        subject = JournaledSubject(Slow(tmp_path / "asked.jsonl"), kept, BATCH)  # type: ignore[arg-type]
        assert subject.replies(requests[::step], 9) == [f"reply to request {n}" for n in range(TEXTS)][::step]
        kept.close()
    assert asked_in(tmp_path).total() == TEXTS
    subject.replies(requests[:1], 8)
    assert asked_in(tmp_path).total() == TEXTS + 1, "a shorter answer is another one"
    shown = [
        ChatRequest([("user", "<image>")], [Image.new("RGB", (2, 2), colour)])
        for colour in ("red", "blue", "red")
    ]
    subject.replies(shown, 9)
    subject.replies(shown, 9)
    assert asked_in(tmp_path).total() == TEXTS + 1 + 3, "asked by their pixels, and only once"


def test_keeping_costs_little_beside_what_is_kept(tmp_path: Path) -> None:
    """A batch of 256 embeddings of 768 numbers is kept within ten milliseconds."""
    kept = journal(tmp_path / "j")
    rows, keys = os.urandom(256 * 768 * 4), [f"some/long/key/of/a/sample_{n}" for n in range(256)]
    began = time.process_time()
    for _ in range(50):
        kept.append("s", JournalEntry({"keys": keys, "extracted": keys}, rows))
    assert (time.process_time() - began) / 50 < 0.01
    kept.remove()
