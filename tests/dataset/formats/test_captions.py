"""What counts as a caption that says something."""

import time

import pytest

from tasks.dataset.formats.captions import telling_words, text_hash

EMPTY = (
    "IMG_2041.JPG",
    "image",
    "Photo 3",
    "DSC01234",
    "dsc_0001.jpeg",
    "Untitled (3)",
    "null",
    "nan",
    "n/a",
    "...",
    "https://example.com/a/b.png",
    "3f2a9c1e77d04b5a",
    "Screenshot",
    "Bild 12",
    "<image>",
    "PXL_20230401_123456",
    "-",
    "a",
)
TELLING = (
    "cat",
    "a photo of a 3",
    "Rotkehlchen im Schnee",
    "猫が机の上にいる",
    "кошка на столе",
    "image of a red bus",
    "7-up can",
)


@pytest.mark.parametrize("text", EMPTY)
def test_a_text_that_says_nothing_has_no_telling_word(text: str) -> None:
    assert telling_words(text) == 0


@pytest.mark.parametrize("text", TELLING)
def test_a_text_that_says_something_has_some(text: str) -> None:
    assert telling_words(text) > 0


@pytest.mark.parametrize(
    "piece", [".", "a.", ".jp", "<", "<a", "a1-", "aaaaaaaa-", "dsc-", "www.", "\u3042", "a b.", "é."]
)
def test_a_hostile_caption_of_a_megabyte_takes_less_than_a_second(piece: str) -> None:
    caption = piece * (1_000_000 // len(piece))
    began = time.process_time()
    telling_words(caption)
    assert time.process_time() - began < 1


def test_words_are_counted_in_scripts_without_spaces_too() -> None:
    assert telling_words("一只猫坐在桌子上") >= 4
    assert telling_words("a dog runs over the green meadow") == 6


def test_equal_texts_have_equal_hashes_whatever_their_case_and_spaces() -> None:
    assert text_hash("A cat\n sits") == text_hash("a  Cat sits ")
    assert text_hash("a cat sits") != text_hash("a cat sat")
    assert text_hash("a", "b") != text_hash("a b")
