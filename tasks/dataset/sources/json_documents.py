"""Rows of JSON documents: lists of objects, objects one after another, COCO's annotations, and Karpathy's
splits of COCO and Flickr.

A document may hold gigabytes, so it is read value by value, twice: once for its images, which are kept in a
database on disk, and for its columns and the number of its rows, then for the rows. Formats:
https://cocodataset.org/#format-data, and https://cs.stanford.edu/people/karpathy/deepimagesent/.

- COCO: a row per annotation, with the fields of its image. `category` is the name of its category.
- Karpathy: a row per sentence, with the fields of its image. `caption` is the sentence as it was written.
  Images of `restval` are those of COCO's validation set that everybody trains on, so their `split` is train.

`file` is the image's path from the folder of the collection, such as `train2017/000000391895.jpg`, where the
document states that folder, else the name that it gives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, TextIO

from tasks.core.errors import DataError
from tasks.dataset.sources.fields import (
    BYTE_ORDER_MARK,
    DECODER,
    MOST_NESTED,
    Lookup,
    TableRow,
    is_deep,
    row_text,
)
from tasks.dataset.sources.raw_files import text_errors

CHUNK = 1 << 20
"""Characters to read at once."""
LONGEST_VALUE = 64 << 20
FIRST_ROWS = 200
"""Rows whose fields are the columns."""
KINDS = "a list of objects, COCO's images with annotations, or Karpathy's images with sentences"
REPEATED = ("tokens", "sentences", "sentids")
"""Fields of Karpathy's documents that repeat the sentences."""
SPACES = re.compile(r"[ \t\n\r]*")


def begins_list(place: str, text: TextIO) -> bool:
    """Whether an open file is a list, or holds objects line by line; it is left at its beginning."""
    stream = JsonStream(place, text)
    is_list = stream.peek() == "["
    is_lines = not is_list and stream.begins_line()
    text.seek(0)
    return is_list or is_lines


def listed_rows(place: str, text: TextIO) -> Iterator[TableRow]:
    """Yield the objects of a list with the number of each, because a list is often one line, or those of a
    file with one after another with the line where each begins."""
    stream = JsonStream(place, text)
    is_list = stream.peek() == "["
    for number, value in enumerate(stream.elements() if is_list else stream.values(), 1):
        fault = None if isinstance(value, dict) else "no JSON object"
        if stream.may_be_deep and is_deep(value):
            fault = "nested too deeply"
        line = number if is_list else stream.line
        yield TableRow(line, {}, fault) if fault else TableRow(line, value)
    stream.require_end()


class JsonRows:
    """The rows of an open document that is one object, to be iterated over once; reading them to their end
    closes the file.

    `columns` are those of its first rows, `count` is the number of rows.
    """

    def __init__(self, place: str, text: TextIO) -> None:
        """DataError, and the file is closed, when it is no document of a kind that is read."""
        self._place, self._text = place, text
        self._categories: dict[str, str] = {}
        self._images = Lookup(())
        self.count = 0
        try:
            self._fields = self._kind()
            first = islice(self._rows(), FIRST_ROWS)
            self.columns = list(dict.fromkeys(name for row in first for name in row.fields))
        except BaseException:
            text.close()
            raise

    def __iter__(self) -> Iterator[TableRow]:
        with self._text:
            yield from self._rows()

    def _rows(self) -> Iterator[TableRow]:
        for number, fields in enumerate(self._fields(self._stream()), 1):
            if isinstance(fields, str):
                yield TableRow(number, {}, fields)
            else:
                yield (
                    TableRow(number, {}, "nested too deeply") if is_deep(fields) else TableRow(number, fields)
                )

    def _stream(self) -> JsonStream:
        self._text.seek(0)
        return JsonStream(self._place, self._text)

    def _kind(self) -> Callable[[JsonStream], Iterator[dict[str, Any] | str]]:
        """Count the rows, read what they refer to, and return the function that yields the fields of each, or
        why it has none."""
        stream = self._stream()
        if stream.peek() != "{":
            raise DataError(f"{self._place} is none of the documents that are read: {KINDS}")
        names = set()
        for name in stream.members():
            names.add(name)
            if name == "images" and stream.peek() == "[":
                images = stream.elements()
                first = next(images, None)
                if isinstance(first, dict) and "sentences" in first:
                    self.count = sum(map(_sentences_of, chain([first], images)))
                    return _of_karpathy
                self._images = Lookup(_by_id(chain([first], images)))
            elif name == "annotations":
                self.count = stream.skip()
            elif name == "categories" and stream.peek() == "[":
                categories = [one for one in stream.elements() if isinstance(one, dict)]
                self._categories = {str(one.get("id")): str(one.get("name")) for one in categories}
            else:
                stream.skip()
        if not {"images", "annotations"} <= names:
            there = ", ".join(sorted(map(repr, names))[:6])
            raise DataError(f"{self._place} holds {there or 'nothing'}; documents that are read: {KINDS}")
        return self._of_coco

    def _of_coco(self, stream: JsonStream) -> Iterator[dict[str, Any] | str]:
        for name in stream.members():
            if name == "annotations":
                yield from map(self._annotation, stream.elements())
            else:
                stream.skip()

    def _annotation(self, annotation: Any) -> dict[str, Any] | str:
        if not isinstance(annotation, dict):
            return "no JSON object"
        images = self._images[str(annotation.get("image_id"))]
        if len(images) != 1:
            return f"{len(images) or 'none'} of the images has its image_id {annotation.get('image_id')!r}"
        image = json.loads(images[0])
        fields = {"file": _path_of(image), **image, **annotation}
        if "category_id" in annotation:
            fields["category"] = self._categories.get(str(annotation["category_id"]))
        return fields


def _of_karpathy(stream: JsonStream) -> Iterator[dict[str, Any] | str]:
    for name in stream.members():
        if name != "images":
            stream.skip()
            continue
        for image in stream.elements():
            if not isinstance(image, dict) or not isinstance(image.get("sentences"), list):
                yield "no image with sentences"
                continue
            own = {key: value for key, value in image.items() if key not in REPEATED}
            own["split"] = "train" if own.get("split") == "restval" else own.get("split")
            for sentence in image["sentences"]:
                found = sentence if isinstance(sentence, dict) else {}
                further = {key: value for key, value in found.items() if key not in (*REPEATED, "raw")}
                yield {"file": _path_of(image), "caption": found.get("raw"), **own, **further}


def _sentences_of(image: Any) -> int:
    sentences = image.get("sentences") if isinstance(image, dict) else None
    return len(sentences) if isinstance(sentences, list) else 1


def _by_id(images: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields of images as JSON by their id."""
    for image in images:
        if isinstance(image, dict) and "id" in image:
            yield str(image["id"]), row_text({key: value for key, value in image.items() if key != "id"})


def _path_of(image: Mapping[str, Any]) -> Any:
    """Return the path of an image from the folder of the collection, or what there is in its place."""
    name = image.get("file_name", image.get("filename"))
    folder = image.get("filepath")
    if not isinstance(folder, str) and isinstance(image.get("coco_url"), str):
        above, _, last = image["coco_url"].rpartition("/")
        folder = above.rpartition("/")[2] if last == name else None
    return f"{folder}/{name}" if isinstance(name, str) and isinstance(folder, str) and folder else name


class JsonStream:
    """The values of a JSON text, read in order, each when it is asked for. DataError where it is none."""

    def __init__(self, place: str, text: TextIO) -> None:
        self._place, self._text = place, text
        self._buffer, self._position, self._before = "", 0, 0
        self._start = self._counted = 0
        self.line = 1
        """The line where the last value begins."""

    def peek(self) -> str:
        """Return the next character that is no space; "" at the end."""
        if (char := self._buffer[self._position : self._position + 1]) and char not in " \t\n\r":
            return char
        while True:
            rest = SPACES.match(self._buffer, self._position)
            self._position = rest.end() if rest else self._position
            if self._position < len(self._buffer) or not self._read():
                return self._buffer[self._position : self._position + 1]

    def begins_line(self) -> bool:
        """Whether the first line holds a whole object, and another object follows."""
        line, _, rest = self._buffer[self._position :].partition("\n")
        try:
            return rest.lstrip().startswith("{") and isinstance(DECODER.decode(line), dict)
        except (ValueError, RecursionError):
            return False

    @property
    def may_be_deep(self) -> bool:
        """Whether the last value has so many brackets that it may be nested too deeply."""
        span = self._start, self._position
        return sum(self._buffer.count(bracket, *span) for bracket in "[{") > MOST_NESTED

    def value(self) -> Any:
        self.peek()
        self._count_lines()
        while True:
            self._start = self._position
            try:
                value, end = DECODER.raw_decode(self._buffer, self._position)
            except RecursionError:
                raise self._error("nested too deeply") from None
            except ValueError:
                if not self._read():
                    raise self._error("no valid JSON") from None
                continue
            if end < len(self._buffer) or not self._read():  # a number may go on
                self._position = end
                return value

    def skip(self) -> int:
        """Pass over the next value, and return the number of its elements if it is a list."""
        if self.peek() == "[":
            return sum(1 for _ in self.elements())
        self.value()
        return 0

    def elements(self) -> Iterator[Any]:
        """Yield the elements of the next value, a list."""
        self._take("[")
        char = self.peek()
        while char != "]":
            yield self.value()
            char = self.peek()
            if char != "]":
                self._take(",")
                char = self.peek()
        self._take("]")

    def values(self) -> Iterator[Any]:
        """Yield the values that follow each other up to the end."""
        while self.peek():
            yield self.value()

    def require_end(self) -> None:
        """DataError if anything follows."""
        if self.peek():
            raise self._error("no valid JSON: something follows its end")

    def members(self) -> Iterator[str]:
        """Yield the names of the next value, an object; whoever takes a name reads its value."""
        self._take("{")
        while self.peek() != "}":
            name = self.value()
            self._take(":")
            yield str(name)
            if self.peek() != "}":
                self._take(",")
        self._take("}")

    def _count_lines(self) -> None:
        self.line += self._buffer.count("\n", self._counted, self._position)
        self._counted = self._position

    def _take(self, char: str) -> None:
        if self.peek() != char:
            raise self._error(f"no valid JSON: {char} is missing")
        self._position += 1

    def _read(self) -> bool:
        """Read on, as much as is waiting already so that a long value is parsed few times; False at the
        end."""
        waiting = len(self._buffer) - self._position
        if waiting > LONGEST_VALUE:
            raise self._error(f"a value of over {LONGEST_VALUE:,} characters, as no table has it")
        with text_errors(self._place, self._where):
            more = self._text.read(max(CHUNK, waiting))
        self._count_lines()
        is_first = not self._before and not self._buffer
        self._before += self._position
        self._start = self._counted = 0
        added = more.removeprefix(BYTE_ORDER_MARK) if is_first else more
        self._buffer, self._position = self._buffer[self._position :] + added, 0
        return bool(more)

    def _where(self) -> str:
        return f"what follows character {self._before + self._position:,}"

    def _error(self, problem: str) -> DataError:
        where = f"from character {self._before + self._position + 1:,} on"
        return DataError(f"{self._place}: {where}, {problem}; mend it, or copy it again if it was cut")
