"""The page of a version: what it shows, what it must not show, and what a fault costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.cli import main
from tasks.core import tokens
from tasks.dataset.preview import page_path
from tests.dataset.handmade import write_version
from tests.dataset.preview.pages import HOSTILE, SECRET, a_version, attributes, page, pairs, picture, words


def test_counts_samples_rejects_and_numbers_are_on_one_page(tmp_path: Path) -> None:
    tags = page(a_version(tmp_path))
    text = words(tags)
    assert "112 read = 100 accepted + 0 filtered + 12 rejected" in text
    assert "train 60 of 90" in text and "val 10 of 10" in text
    assert len([one for one in attributes(tags, "img") if "width" in one]) == 70  # and the map's
    assert "caption 99" in text and "90 × 60" in text
    assert f"all 12 under {SECRET}_90*" in text and "0 bytes (secret.csv:3)" in text
    assert "Size of a shard" in text and "Tokens per caption are left out" in text
    assert [
        attrs["aria-label"] for attrs in attributes(tags, "svg") if "Caption" in str(attrs["aria-label"])
    ] == ["Caption length: 100 samples from 0 to 99.0 characters, half of them at or below 49.0."]


def test_each_cause_of_a_reason_has_its_count_and_examples(tmp_path: Path) -> None:
    rejects = [("report.missing", f"a{n}", "no row in reports.csv", f"a{n}.npz") for n in range(9)]
    rejects += [("report.missing", f"b{n}", f"the report has {n} bytes", f"b{n}.npz") for n in range(3)]
    version = write_version(tmp_path / "version", "image_text", {"train": pairs(1)}, rejects=rejects)
    text = words(page(version))
    assert "9 of 12 a0 : no row in reports.csv (a0.npz)" in text
    assert "3 of 12 b0 : the report has 0 bytes (b0.npz)" in text


def test_the_page_runs_nothing_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    version = write_version(
        tmp_path / "version",
        "image_text",
        {"train": [("a", {"jpg": picture(1), "txt": HOSTILE.encode("utf-8", "replace")})]},
        rejects=[("caption.empty", "<script>", "<script>alert(1)</script>", "<img src=x>")] * 6,
    )
    tags = page(version)
    assert "<script>alert(1)</script>" in tags.text
    assert not {tag for tag, _ in tags.tags} & {"script", "link", "iframe", "object", "input", "button"}
    assert not [attrs for _, attrs in tags.tags if any(name.startswith("on") for name in attrs)]
    for _, attrs in tags.tags:
        for name in ("src", "href"):
            assert not attrs.get(name) or str(attrs[name]).startswith(("data:image/", "#"))


@pytest.mark.parametrize("private", [True, None])
def test_a_private_version_shows_counts_only(tmp_path: Path, private: bool | None) -> None:
    version = a_version(tmp_path, private=private)
    for tar in version.rglob("*.tar"):
        tar.unlink()  # not even opened
    text = words(page(version, count_tokens=len))
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert SECRET not in html and "secret.csv" not in html and "data:image" not in html
    assert "image.empty" in text and "112 read" in text and "Caption length" in text
    assert "0 bytes" not in text
    assert ("No sample was opened" in text) == (private is True)
    assert ("unknown whether the data is private, because build.json is missing" in text) == (private is None)


def test_a_build_info_that_was_changed_is_not_believed(tmp_path: Path) -> None:
    version = a_version(tmp_path, private=True)
    path = version / "build.json"
    path.write_text(path.read_text().replace('"private": true', '"private": false'))
    assert "unknown whether the data is private" in words(page(version)) and "caption 1" not in words(
        page(version)
    )


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("samples/train.parquet", "No distributions are shown: samples/train.parquet: cannot be read"),
        ("shards.parquet", "No shards are shown: shards.parquet: cannot be read"),
        ("rejects.parquet", "No examples of rejects are shown: rejects.parquet: cannot be read"),
        ("index/train.npy", "No samples of train are shown: index/train.npy"),
    ],
)
def test_a_broken_table_costs_its_own_section(tmp_path: Path, file: str, says: str) -> None:
    version = a_version(tmp_path)
    (version / file).write_bytes(b"PAR1 torn")
    text = words(page(version, count_tokens=len))
    (version / "index" / "train.npy").unlink()
    assert "No samples of train are shown: index/train.npy is missing." in words(page(version))
    assert says in text and "112 read" in text and "val 10 of 10" in text and str(tmp_path) not in text


def test_the_page_lies_beside_the_data(tmp_path: Path) -> None:
    dataset = tmp_path / "data"
    version = write_version(dataset / "versions" / "0123456789ab", "image_text", {"train": pairs(2)})
    other = write_version(dataset / "versions" / "ba9876543210", "image_text", {"train": pairs(3)})
    (dataset / "current").symlink_to("versions/0123456789ab")
    assert page_path(dataset / "current") == page_path(version) == dataset / "look.html"
    assert page_path(other) == dataset / "look-ba9876543210.html"
    alone = write_version(tmp_path / "copied", "image_text", {"train": pairs(2)})
    assert page_path(alone) == tmp_path / "look-copied.html"


def test_the_command_prints_where_the_page_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "caption_counter", lambda: None)  # loading CLIP's takes seconds
    chat = [("a", {"json": b'{"messages": []}', "000.jpg": picture(1)[:500]})]
    version = write_version(tmp_path / "version", "chat", {"train": chat})
    out = tmp_path / "page.html"
    assert main(["look", str(version), "--out", str(out)]) == 1
    said = capsys.readouterr()
    assert said.out == f"{out}\n" and "manifest.invalid 1" in said.err
    assert main(["look", str(version), "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert not printed["ok"] and printed["faulty"] == 1 and Path(printed["look"]).is_file()
    assert main(["look", str(tmp_path)]) == 2 and main(["look", str(tmp_path / "nowhere")]) == 2
    (tmp_path / "current").symlink_to("versions/gone")
    assert main(["look", str(tmp_path)]) == 2
    assert main(["look", str(version), "--quick", "--full"]) == 2
    assert main(["look", str(version), "--out", str(out / "page.html")]) == 2
    said = capsys.readouterr()
    assert "choose one" in said.err and "--out:" in said.err
    assert all(line.startswith("✗ ") for line in said.err.splitlines())
