"""TSV files with quotes and without: no row of the one is lost by the rules of the other."""

from __future__ import annotations

import csv
import io
from functools import partial
from pathlib import Path

import pytest

from tasks.core.errors import DataError
from tasks.core.stores import StoreUnreachable
from tasks.dataset.sources import tabular
from tasks.dataset.sources.tabular import open_table

HEADER = "caption\turl\n"
Read = list[tuple[int, list[str]]]


def read(folder: Path, text: str) -> Read:
    (folder / "t.tsv").write_text(text, newline="")
    rows = open_table(folder / "t.tsv", "dataset.source.path").rows
    return [(row.line, list(row.fields.values()) if row.fault is None else []) for row in rows]


def test_a_lone_quote_swallows_no_row(tmp_path: Path) -> None:
    rows = ['"Go', "fine", 'a 5" nail', '"', '"so" she said', 'x"']
    text = "".join(f"{caption}\t{number}.jpg\n" for number, caption in enumerate(rows))
    expected = [(number + 2, [caption, f"{number}.jpg"]) for number, caption in enumerate(rows)]
    assert read(tmp_path, HEADER + text) == expected
    swapped = "".join(f'{number}.jpg\t"{caption}\r\n' for number, caption in enumerate(rows))
    assert [line for line, _ in read(tmp_path, "url\tcaption\r\n" + swapped)] == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0)])
def test_cells_that_data_frames_quote_are_read_back(tmp_path: Path, order: tuple[int, ...], end: str) -> None:
    rows = [
        ("plain", "a.jpg", "1"),
        ('say "no"', "b.jpg", "2"),
        ("two\nlines", "c.jpg", "3"),
        ("tab\there", "d.jpg", "4"),
        ('more\n\nof "them"\nand on', "e.jpg", "5"),
        ('"', "f.jpg", "6"),
    ]
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator=end)
    writer.writerows([row[n] for n in order] for row in [("caption", "url", "n"), *rows])
    found = read(tmp_path, text.getvalue())
    assert [cells for _, cells in found] == [[row[n] for n in order] for row in rows]
    assert [line for line, _ in found] == [2, 3, 4, 6, 7, 11]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('a\t"torn\nof it\nb\t2\n', [(2, ["a", '"torn']), (3, ["of it"]), (4, ["b", "2"])]),
        ('"torn\n\n"b" or so\t2\n', [(2, ['"torn']), (4, ['"b" or so', "2"])]),
        ('"torn\nb\t2\n', [(2, ['"torn']), (3, ["b", "2"])]),
        ('x\ty\t"z\nb\t2\n', [(2, []), (3, ["b", "2"])]),
        ('a\t"last\n\n', [(2, ["a", '"last'])]),
        ('\n"a"\n\nb\t2', [(3, ['"a"']), (5, ["b", "2"])]),
    ],
)
def test_quotes_that_never_end_cost_no_other_row(tmp_path: Path, text: str, expected: Read) -> None:
    assert read(tmp_path, HEADER + text) == expected


def test_two_cells_of_a_row_may_have_several_lines(tmp_path: Path) -> None:
    rows = '"a\nb"\t"c\nd"\n"e\nf"\t"g\n\nh"\n'
    assert read(tmp_path, HEADER + rows) == [(2, ["a\nb", "c\nd"]), (5, ["e\nf", "g\n\nh"])]


def test_a_cell_is_no_longer_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(tabular, "LONGEST_CELL", 1000)
    request.addfinalizer(partial(csv.field_size_limit, csv.field_size_limit(1000)))
    lines = '"open\n' + "x" * 99 + "\n" + ("y" * 99 + "\n") * 50
    assert len(read(tmp_path, HEADER + lines + 'end"\t2.jpg\n')) == 53
    with pytest.raises(DataError, match=r"t\.tsv:3: a cell of more than 1,000 characters"):
        read(tmp_path, HEADER + "a\tb\n" + "x" * 1001 + "\tc\n")


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_a_disk_that_fails_names_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    class Failing(io.StringIO):
        def readline(self, size: int | None = -1) -> str:
            line = super().readline(size)
            if not line:
                raise OSError(5, "Input/output error")
            return line

    monkeypatch.setattr(tabular, "_text", lambda *_: Failing("{}\n{}\n{}\n"))
    (tmp_path / f"t.{suffix}").touch()
    with pytest.raises(StoreUnreachable, match="line 4 and on cannot be read"):
        list(open_table(tmp_path / f"t.{suffix}", "dataset.source.path").rows)


def test_a_cell_with_tabs_and_lines_passes_for_one_that_a_lone_quote_opened(tmp_path: Path) -> None:
    """Every line is a row then, and rejects tell: the other way round rows would be lost in silence."""
    text = HEADER + '"x\ty\nz"\ta.jpg\n"say ""no"""\tb.jpg\n'
    assert read(tmp_path, text) == [(2, ['"x', "y"]), (3, ['z"', "a.jpg"]), (4, ['"say ""no"""', "b.jpg"])]
