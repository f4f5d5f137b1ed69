"""Conversations about scikit-learn's handwritten digits, in nanoVLM's row format, with ratings to filter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.dataset.examples.digits import DIGITS, picture
from tasks.dataset.modalities.chat import RATINGS

READ, ADDED, FACTS, COMPARED = 200, 200, 50, 150
"""The number of conversations in each subset."""
OFF_TOPIC = 12
"""One conversation in this many has a turn with low ratings, because it is not about the picture."""

Row = dict[str, Any]
Turn = tuple[str, str]


def digits_chat(folder: Path) -> int:
    """Write 600 conversations in four subsets, and return their number.

    `read` and `add` are Parquet files with one and two images per row, `facts` is one without images, and
    `compare` is a folder of JSON lines with image paths.
    """
    from sklearn.datasets import load_digits  # here, because it takes a second

    data = load_digits()
    images = [picture(pixels) for pixels in data.images[: READ + 2 * ADDED + COMPARED]]
    labels = [int(label) for label in data.target]
    _write_parquet(folder / "read.parquet", [_read(n, images, labels) for n in range(READ)])
    _write_parquet(folder / "add.parquet", [_added(n, images, labels) for n in range(ADDED)])
    facts = (
        (a, b, (f"How much is {DIGITS[a]} times {DIGITS[b]}?", f"It is {a * b}."))
        for a, b in (divmod(n, 10) for n in range(FACTS))
    )
    _write_parquet(folder / "facts.parquet", [_row(10 * a + b, [], [turn]) for a, b, turn in facts])
    _write_jsonl(folder / "compare", images, labels)
    return READ + ADDED + FACTS + COMPARED


def _read(number: int, images: Sequence[bytes], labels: Sequence[int]) -> Row:
    digit = labels[number]
    turns = [
        ("Which digit is shown?", f"It is a {DIGITS[digit]}."),
        ("Is it larger than five?", "Yes." if digit > 5 else "No."),
        ("Is it even or odd?", "Even." if digit % 2 == 0 else "Odd."),
    ]
    return _row(number, [{"bytes": images[number], "path": None}], turns[: 1 + number % 3])


def _added(number: int, images: Sequence[bytes], labels: Sequence[int]) -> Row:
    first = READ + 2 * number
    a, b = labels[first], labels[first + 1]
    larger = "The first." if a > b else "The second." if b > a else "They are equal."
    turns = [
        ("What is the sum of the two digits?", f"{DIGITS[a]} plus {DIGITS[b]} is {a + b}."),
        ("Which of the two is larger?", larger),
    ]
    return _row(number, [{"bytes": image, "path": None} for image in images[first : first + 2]], turns)


def _compared(number: int, name: str, digit: int) -> Row:
    other = number % 10
    answer = "larger than" if digit > other else "smaller than" if digit < other else "equal to"
    question = f"How does the digit compare with {DIGITS[other]}?"
    return _row(number, [name], [(question, f"It is {answer} {DIGITS[other]}.")])


def _row(number: int, images: list[Any], turns: list[Turn]) -> Row:
    """Return a row with ratings. Sometimes an off-topic turn comes last, and rarely it is the only turn."""
    rated: list[Mapping[str, int | None]] = [
        {name: 4 + (number + turn + kind) % 2 for kind, name in enumerate(RATINGS)}
        for turn in range(len(turns))
    ]
    if number % OFF_TOPIC == OFF_TOPIC - 1:
        is_all = number % (4 * OFF_TOPIC) == OFF_TOPIC - 1
        turns = [*([] if is_all else turns), (f"What is the weather on day {number}?", "I cannot see it.")]
        off_topic = {"relevance": 1, "image_correspondence": 1, "visual_dependency": 1, "formatting": None}
        rated = [*([] if is_all else rated), off_topic]
    return {
        "images": images,
        "texts": [{"user": user, "assistant": assistant} for user, assistant in turns],
        **{f"{name}_ratings": [turn[name] for turn in rated] for name in RATINGS},
    }


def _write_jsonl(folder: Path, images: Sequence[bytes], labels: Sequence[int]) -> None:
    (folder / "images").mkdir(parents=True)
    first = READ + 2 * ADDED
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for number in range(COMPARED):
            name = f"images/digit_{first + number:04d}.png"
            (folder / name).write_bytes(images[first + number])
            file.write(json.dumps(_compared(number, name, labels[first + number])) + "\n")


def _write_parquet(path: Path, rows: list[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    turn = pa.struct([("user", pa.string()), ("assistant", pa.string())])
    ratings = [(f"{name}_ratings", pa.list_(pa.int64())) for name in RATINGS]
    schema = pa.schema([("images", pa.list_(image)), ("texts", pa.list_(turn)), *ratings])
    pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=100)
