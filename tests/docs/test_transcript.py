"""The comparison of a page with what its commands print lets pass what the rules name, and nothing else."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import text_of
from tests.docs.transcript import RULES, SHORTENED, Comparison, Line, SavedFile, TypedCommand, steps

START = [step for step in steps(text_of("docs/start.md")) if isinstance(step, TypedCommand)]
OUTPUTS = [step for step in START if step.output]
PASSES = {
    "tuning": (
        "✓ tune      1 worker: 4,436 samples/s, enough for the 2,817 that the training takes, of which it reaches 58 % "
        "(0 workers: 4,373, which it would wait for)    11 s",
        "✓ tune      2 workers: 951 samples/s, not enough for the 1,881.5 that the training takes "
        "(0 workers: 640, which it would wait for, 1 worker: 700)   8.0 s",
    ),
    "wandb run": ("run 2f2f0703523b-f86db825", "run 2f2f0703523b-0da65334"),
    "id": ("data/versions/d9ba677b2ad5 is sound", "data/versions/0123456789ab is sound"),
    "time": ("written             1.6 s", "written              12 s"),
    "processors": ("about 5.52 MB, 1.0 s with 2 workers", "about 5.52 MB, 0.4 s with 16 workers"),
    "free space": (
        "5.52 MB of 60.6 GB free on the disk of data",
        "5.52 MB of 1.2 TB free on the disk of data",
    ),
    "bytes read": ("  workers     +872 MB read, 0 batches", "  workers     +1.31 GB read, 0 batches"),
    "waiting": ("loss, waiting for data 3.8 %", "loss, waiting for data 12 %"),
    "goodput": ("  goodput 81%: training", "  goodput 7%: training"),
    "process": ("  main 24899  waits for", "  main 462    waits for"),
    "shard": ("  data        000006.tar: json png txt", "  data        000000.tar: json png txt"),
    "brightness": ("step 499 brightness 79.1", "step 499 brightness 80.4"),
    "loss": ("600 steps, loss 4.53 → 1.88, waiting for", "600 steps, loss 4.50 → 1.91, waiting for"),
    "score": (
        "Zero-shot accuracy 0.957 (0.925 to 0.976 at 95 %; 258",
        "Zero-shot accuracy 0.930 (0.900 to 0.950 at 95 %; 258",
    ),
}
"""By rule what a page has, and what may be printed in its place."""
FAILS = {
    "another number of samples": ("✓ example   1,797 samples", "✓ example   1,796 samples"),
    "a word": ("the others were sound", "the others were fine"),
    "a size that is none of the disk's": ("about 5.52 MB, 1.0 s with", "about 5.53 MB, 1.0 s with"),
    "no unit": ("written             1.6 s", "written             1.6"),
    "another share": ("0 % of 3", "1 % of 3"),
    "a damaged shard": ("✗ shard.checksum  train/000003.tar", "✗ shard.checksum  train/000004.tar"),
    "a learning rate": ("learning rate 0.001 after", "learning rate 0.002 after"),
    "a score too far away": (PASSES["score"][0], PASSES["score"][0].replace("0.957", "0.906")),
    "a loss too far away": (PASSES["loss"][0], PASSES["loss"][0].replace("1.88", "1.94")),
    "a word of the choice": (PASSES["tuning"][0], PASSES["tuning"][0].replace(" enough for", " plenty for")),
    "a choice that no loader makes": (
        PASSES["tuning"][0],
        "✓ tune      not measured: the loader has no samples    11 s",
    ),
}


def differs(expected: str, printed: str) -> bool:
    return Comparison().difference(expected.split("\n"), printed) is not None


def test_each_rule_lets_its_value_pass() -> None:
    assert PASSES.keys() == {rule.name for rule in RULES}
    for name, (expected, printed) in PASSES.items():
        assert f"‹{name}›" in Line.of(expected).words, name
        assert not differs(expected, printed) and not differs(printed, expected), name


@pytest.mark.parametrize("case", FAILS)
def test_what_no_rule_names_fails(case: str) -> None:
    expected, printed = FAILS[case]
    assert not differs(expected, expected) and differs(expected, printed)


@pytest.mark.parametrize("step", OUTPUTS, ids=lambda step: step.words[:40])
def test_each_line_of_the_start_counts(step: TypedCommand) -> None:
    """A line that is missing, one too many, and a wrong word anywhere in the page's output fail."""
    printed = [line if line != SHORTENED else "whatever is left out" for line in step.output]
    assert not differs("\n".join(step.output), "\n".join(printed))
    for place, line in enumerate(step.output):
        if line == SHORTENED:
            continue
        before, after = printed[:place], printed[place + 1 :]
        assert differs("\n".join(step.output), "\n".join([*before, *after])), line
        if SHORTENED not in step.output[max(place - 1, 0) : place + 2] and line:
            assert differs("\n".join(step.output), "\n".join([*before, line, line, *after])), line
        for word in re.finditer(r"[A-Za-z]{2,}", Line.of(line).words.replace("‹", "").replace("›", "")):
            if word[0] in line and word[0] not in {rule.name for rule in RULES}:
                wrong = line.replace(word[0], "wrong", 1)
                assert differs("\n".join(step.output), "\n".join([*before, wrong, *after])), (line, word[0])


def test_a_name_stands_for_one_thing_on_the_whole_page() -> None:
    once, again, other = "version aaaaaaaaaaaa", "version bbbbbbbbbbbb", "version cccccccccccc"
    compared = Comparison()
    assert compared.difference([once], again) is None
    assert compared.difference([once], again) is None
    assert compared.difference([once], other) is not None, "the page's version was another before"
    assert compared.difference([other], again) is not None, "what is printed was another of the page's before"
    assert compared.difference([other], other) is None


def test_lines_of_progress_are_left_out() -> None:
    assert not differs("✓ build", "  starting Prefect…\n  build     382/1,797 samples\n✓ build\n")
    assert differs("✓ build", "  build     382/1,797 rows\n✓ build\n")


def test_a_page_says_where_it_leaves_lines_out() -> None:
    assert not differs("first\n…\nlast", "first\none\ntwo\nlast\n")
    assert not differs("first\n…", "first\none\n")
    assert differs("first\n…\nlast", "first\nlast\n"), "nothing was left out"
    assert differs("first\n…", "first\n"), "nothing was left out at the end"
    assert differs("first\n…\nlast", "first\none\n")
    assert differs("first\n…\nlast", "first\none\nlast\nmore\n")


def test_a_page_is_read_as_steps() -> None:
    page = (
        "Text\n```console\n$ one --option\nprinted\n\nmore\n$ two\n✗ 1 finding\n```\n"
        "```python\n# train.py\nprint()\n```\n```python\nshown = 1\n```\n```yaml\nname: x\n```\n"
    )
    found = list(steps(page))
    assert found == [
        TypedCommand("one --option", ["printed", "", "more"]),
        TypedCommand("two", ["✗ 1 finding"]),
        SavedFile("train.py", "# train.py\nprint()\n"),
    ]
    assert [step.code for step in found if isinstance(step, TypedCommand)] == [0, 1]
    assert len(START) > 10 and any(isinstance(step, SavedFile) for step in steps(text_of("docs/start.md")))
