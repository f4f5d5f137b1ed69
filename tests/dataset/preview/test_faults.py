"""The faults tab explains every fault and its remedy; it hides nothing, and shows nothing hostile or private."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tasks.core import tokens
from tasks.core.findings import Finding, Report
from tasks.dataset.preview import Checked, page_path, summary, version_at, write_look
from tasks.dataset.preview.faults import FAULT_CODES, SHOWN
from tasks.dataset.preview.tiles import legible
from tasks.dataset.sample_reader import SampleReader
from tasks.dataset.tar.format import BLOCK, END
from tasks.dataset.verify.findings import LEFT
from tasks.dataset.version import quarantine, versions
from tasks.dataset.version.index import read_index
from tests.core.test_pages import Tags
from tests.dataset import damage, raw
from tests.dataset.building.prepared import pictures, published
from tests.dataset.handmade import write_version
from tests.dataset.preview.pages import HOSTILE, SECRET, page, page_of, pairs, words
from tests.dataset.raw.shards import entry

CODES = [
    "manifest.invalid",
    "shard.missing",
    "shard.extra",
    "shard.truncated",
    "shard.checksum",
    "shard.count",
    "index.mismatch",
    "sample.duplicate_key",
    "sample.split_members",
    "sample.missing_member",
    "member.empty",
    "member.undecodable",
    "member.checksum",
    "member.unsafe",
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = pictures(tmp_path_factory.mktemp("sound"))
    published(config)
    return config.dataset.output


@pytest.fixture(autouse=True)
def no_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading CLIP's takes seconds."""
    monkeypatch.setattr(tokens, "caption_counter", lambda: None)


@pytest.fixture
def dataset(sound: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(sound, tmp_path / "out", symlinks=True))


@pytest.fixture
def version(dataset: Path) -> Path:
    return versions.resolve(dataset)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A version that is only looked at, and must not be changed."""
    return write_version(tmp_path_factory.mktemp("plain") / "version", "image_text", {"train": pairs(20)})


def flip(version: Path, row: int, at: int = 600) -> None:
    """Change a byte of the first member of a sample of train."""
    found = read_index(version, "train")[row]
    damage.flip(version / f"train/{found['shard']:06d}.tar", int(found["offset"]) + at)


def shown(version: Path, findings: Sequence[Finding], level: str = "default", **report: Any) -> Tags:
    """The page of a version for which verify reported this."""
    return page(version, checked=Checked(Report(findings, **report), level, 1.7e9, "data/digits"))


def look(dataset: Path, *options: str) -> tuple[int, str]:
    """The exit code of the command and the words on its page."""
    out = dataset.parent / "page.html"
    code = main(["look", str(dataset), "--out", str(out), *options])
    return code, words(page_of(out))


def error(
    code: str, remedy: str = "build it again", evidence: Any = None, command: Any = None, **where: Any
) -> Finding:
    return Finding(code, "error", remedy, where, evidence or {"problem": "it is broken"}, command=command)


def test_a_sound_dataset_has_one_line_on_what_was_checked(dataset: Path) -> None:
    for option, says in (
        ("--quick", "No faults at level quick"),
        ("--json", "No faults at level default"),
        ("--full", "No faults at level full"),
    ):
        code, text = look(dataset, option)
        assert code == 0 and says in text and "checked 20" in text
        assert ("Not seen: " in text) == (option != "--full")
        assert "tarmac repair" not in text


def test_ruled_out_codes_are_shown(plain: Path) -> None:
    ruled_out = [{"code": "shard.extra", "evidence": "4 files, all known"}]
    text = words(shown(plain, [], ruled_out=ruled_out, not_seen=["whether members decode"]))
    assert "Not seen: whether members decode. Ruled out: 1 code shard.extra 4 files, all known" in text


def test_every_code_is_explained(plain: Path) -> None:
    assert list(FAULT_CODES) == CODES
    findings = [error(code, f"remedy of {code}", shard="train/000000.tar") for code in CODES]
    text = words(shown(plain, findings))
    for code, meaning in FAULT_CODES.items():
        assert meaning.title in text and meaning.means in text and f"This is not {meaning.is_not}" in text
        assert f"remedy of {code}" in text
    assert "14 faults at level default" in text
    assert "tarmac repair data/digits --full makes" in text
    assert "tarmac repair data/digits --full --quarantine" in text
    text = words(shown(plain, [error("member.checksum")]))
    assert "tarmac repair data/digits makes" in text and "tarmac repair data/digits --quarantine" in text


def test_a_finding_shows_place_evidence_remedy_and_command(plain: Path) -> None:
    findings = [
        error(
            "shard.count",
            f"see {number}",
            {"samples": 12345, "expected": 16, "problem": f"{plain}/train is odd"},
            f"tarmac repair --shard {number}",
            split="train",
            shard=f"train/00000{number}.tar",
        )
        for number in (1, 2)
    ]
    text = words(shown(plain, findings))
    for said in ("shard train/000001.tar", "samples 12,345", "expected 16", "train is odd", "see 2"):
        assert said in text
    assert "tarmac repair --shard 1" in text and str(plain) not in text
    assert "A code of a newer verify" not in text
    assert "strange.code" in words(shown(plain, [error("strange.code", file="A code of a newer verify")]))


@pytest.mark.parametrize("folder", ["data", "my data"])
def test_a_command_names_the_dataset_as_the_user_does(tmp_path: Path, folder: str) -> None:
    version = tmp_path / folder / "versions" / "0123456789ab"
    write_version(version, "image_text", {"train": pairs(1)})
    for path in (tmp_path / folder, version):
        command = f"tarmac repair {shlex.quote(str(path))}"
        text = words(shown(version, [error("shard.missing", command=command, shard="a.tar")]))
        assert "tarmac repair data/digits Where" in text and str(tmp_path) not in text


def test_findings_are_bounded_and_the_rest_counted(plain: Path, tmp_path: Path) -> None:
    long = "x" * 10_000
    evidence = {f"fact {fact} {long}": long for fact in range(30)} | {LEFT: 10}
    findings = [
        error(
            "sample.missing_member", long, evidence, long, shard="train/000000.tar", key=f"{n}-{long[:1000]}"
        )
        for n in range(1000)
    ]
    checked = Checked(Report(findings, not_seen=[long] * 1000), "default", 1.7e9)
    bare = write_look(plain, tmp_path / "bare.html").path.stat().st_size
    made = write_look(plain, tmp_path / "page.html", checked=checked)
    assert made.path.stat().st_size < bare + 300_000
    text = words(page_of(made.path))
    assert "11,000 faults" in text
    assert text.count("and 10 more of this kind") == SHOWN and "Faulty samples 24, some" in text
    assert f"And {11_000 - 11 * SHOWN:,} more, which tarmac verify lists." in text
    assert summary(checked.report) == "11,000 faults: sample.missing_member 11,000"


def test_text_from_hostile_tars_is_visible_and_harmless(plain: Path) -> None:
    where = dict.fromkeys(("shard", "key", "member"), HOSTILE)
    evidence = {HOSTILE: HOSTILE, "problem": f"{HOSTILE} https://me:hunter2@host/x?token=hunter2"}
    codes = ("member.unsafe", "sample.duplicate_key")
    findings = [error(code, HOSTILE, evidence, HOSTILE, **where) for code in codes]
    report = {"not_seen": [HOSTILE], "ruled_out": [{"code": HOSTILE, "evidence": HOSTILE}]}
    page = shown(plain, findings, **report)  # type: ignore[arg-type]
    assert {tag for tag, _ in page.tags} & {"script", "iframe", "object", "link"} == set()
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert "<script>alert(1)</script>" in page.text and "\\u202egpj" in page.text and "\\x1b[31m" in page.text
    assert "hunter2" not in page.text
    assert not re.search("[\u202e\x1b\x00]", (plain.parent / "page.html").read_text(encoding="utf-8"))
    assert legible("a\u202eb\x07 \n c", 40) == "a\\u202eb\\x07 c"


@pytest.mark.parametrize("private", [True, None])
def test_of_a_private_version_there_are_codes_and_counts(tmp_path: Path, private: bool | None) -> None:
    version = write_version(tmp_path / "version", "image_text", {"train": pairs(20)}, private=private)
    where = {"shard": f"{SECRET}/000000.tar", "key": f"{SECRET}_1", "member": f"{SECRET}.txt"}
    evidence, command = {"problem": SECRET, LEFT: 4}, f"tarmac repair {SECRET}"
    findings = [error(code, f"remedy {SECRET}", evidence, command, **where) for code in CODES]
    ruled_out = [{"code": "shard.extra", "evidence": SECRET}]
    checked = Checked(Report(findings, ruled_out, [SECRET]), "default", 1.7e9, f"/data/{SECRET}")
    quarantine.add(version, [quarantine.Quarantined("version", "train", "train/000000.tar", SECRET, SECRET)])
    made = write_look(version, tmp_path / "page.html", checked=checked)
    html = made.path.read_text(encoding="utf-8")
    text = words(page_of(made.path))
    assert SECRET not in html and "caption 1" not in html and "data:image" not in html
    assert "70 faults" in text and all(code in text for code in CODES)
    assert "Not seen: whether members decode." in text and "Ruled out: 1 code shard.extra ✓" in text
    assert "tarmac repair DATASET" in text and "1 sample (other 1)" in text


def test_what_is_left_of_faulty_samples_is_shown(version: Path) -> None:
    """The picture of a sample whose caption changed, of one that another program moved, of one with a torn
    header; and of one that is gone, that it is."""
    reader = SampleReader(version, "train")
    keys = [reader.read(row).key for row in range(16, 32)]
    path = version / "train" / "000001.tar"
    moved = [reader.read(row) for row in (23, 19, 18, 17)]
    members = [entry(f"{one.key}.{name}", content) for one in moved for name, content in one.members.items()]
    path.write_bytes(b"".join([entry("../../etc/passwd"), bytes(BLOCK - 1), b"x", *members, END]))
    place = {"split": "train", "shard": "train/000001.tar"}
    findings = [error("member.checksum", **place, key=keys[number]) for number in (7, 3, 0)]
    findings += [error("sample.split_members", **place, key=keys[3])]
    checked = Checked(Report(findings), "default", 1.7e9)
    page = page_of(write_look(version, version.parent / "page.html", checked=checked).path)
    tiles = page.text.partition("What still decodes of each")[2].partition("\nQuality\n")[0]
    assert "Faulty samples 3, some of each code" in words(page)
    assert tiles.count("member.checksum") == 3 and tiles.count("sample.split_members") == 1
    assert tiles.count("12 × 12") == 2 and tiles.count("nothing of it can be read") == 1
    assert f"{keys[7]} · 12 × 12" in " ".join(tiles.split())


def test_what_only_looking_shows_is_named_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = pictures(tmp_path, 4, image={"check": "header"}, splits={})
    (tmp_path / "raw/0001.png").write_bytes(raw.png(1)[:-30] + bytes(18) + raw.png(1)[-12:])
    published(config)
    output = config.dataset.output
    assert main(["look", str(output)]) == 0
    assert "! 1 of 4 samples cannot be shown whole" in capsys.readouterr().err
    assert "1 with a fault: see tarmac verify --full" in words(page_of(output / "look.html"))


@pytest.mark.parametrize("harm", ["gone", "torn", "newer"])
def test_a_damaged_manifest_leaves_the_faults(dataset: Path, harm: str) -> None:
    path = versions.resolve(dataset) / "manifest.json"
    text = path.read_text()
    path.write_text({"gone": "", "torn": text[:50], "newer": text.replace("tarmac/1", "tarmac/9")}[harm])
    if harm == "gone":
        path.unlink()
    assert main(["look", str(dataset)]) == 1
    assert page_path(version_at(dataset)) == dataset / "look.html"
    page = page_of(dataset / "look.html")
    text = words(page)
    assert "manifest.invalid" in text and "The tables do not hold together" in text
    assert "Faulty samples are not shown: without the manifest" in text
    why = {"gone": "missing", "torn": "damaged or newer", "newer": "of the newer format tarmac/9"}[harm]
    assert text.count(f"Nothing is shown: manifest.json is {why}") == 5
    assert str(dataset / "versions") not in text


def test_the_command_fails_and_names_the_next_one(
    dataset: Path, version: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(version, 3)
    key = SampleReader(version, "train").read(4).key
    out = dataset.parent / "page.html"
    assert main(["look", str(dataset), "--out", str(out)]) == 1
    said = capsys.readouterr()
    assert said.out == f"{out}\n"
    assert re.search(r"✗ 2 faults: shard.checksum 1, member.checksum 1\n", said.err)
    assert f"tarmac repair {dataset}" in said.err
    assert main(["look", str(dataset), "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert not printed["ok"] and {one["code"] for one in printed["findings"]} == {
        "shard.checksum",
        "member.checksum",
        "captions.meaningless",
    }
    assert printed["look"] == str(dataset / "look.html") and printed["version"] == version.name
    assert main(["look", str(dataset), "--quick", "--full"]) == 2
    assert "choose one" in capsys.readouterr().err
    assert key not in json.dumps(printed["findings"])


def test_many_codes_are_one_line_on_the_terminal() -> None:
    assert summary(Report([error(code) for code in CODES])) == (
        "14 faults: manifest.invalid 1, shard.missing 1, shard.extra 1, shard.truncated 1, shard.checksum 1, "
        "and 9 other codes"
    )


def test_samples_in_quarantine_are_counted(dataset: Path, version: Path) -> None:
    flip(version, 3)
    place = ("train", "train/000000.tar")
    entries = [quarantine.Quarantined(version.name, *place, f"key{n}", "member.checksum") for n in range(3)]
    quarantine.add(dataset, [*entries, quarantine.Quarantined("0" * 12, *place, "other", "member.empty")])
    _, text = look(dataset)
    assert "leave them out: 3 samples (member.checksum 3)" in text
    (dataset / quarantine.NAME).write_text("torn")
    code, text = look(dataset)
    assert code == 1 and "The quarantine cannot be read: quarantine.jsonl, line 1" in text


def test_tabs_are_links_to_sections_and_faults_come_first_when_there_are_any(dataset: Path) -> None:
    def first(page: Tags) -> list[str | None]:
        return [
            attrs["id"] for tag, attrs in page.tags if tag == "section" and attrs.get("class") == "tab first"
        ]

    look(dataset)
    page = page_of(dataset.parent / "page.html")
    assert first(page) == ["quality"]  # its captions say nothing
    tabs = ["faults", "quality", "samples", "map", "rejects", "numbers", "shards"]
    assert [
        attrs["id"] for tag, attrs in page.tags if tag == "section" and attrs.get("class", "") >= "tab"
    ] == tabs
    flip(versions.resolve(dataset), 3)
    look(dataset)
    page = page_of(dataset.parent / "page.html")
    assert first(page) == ["faults"]
    ids = {attrs.get("id") for _, attrs in page.tags}
    assert {str(attrs["href"])[1:] for tag, attrs in page.tags if tag == "a"} <= ids
    assert not [attrs for tag, attrs in page.tags if tag in ("input", "script", "button")]


def test_tars_of_others_have_no_source_to_be_repaired_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "000000.tar").write_bytes(entry(f"{SECRET}.png", raw.png(1)) + entry(f"{SECRET}.txt", b"x"))
    code, text = look(folder)
    assert code == 1 and "shard.truncated" in text and SECRET not in text
    assert f"next: tarmac init {folder}\n" in capsys.readouterr().err
    assert "tarmac init DATASET writes a config" in text and "tarmac repair" not in text


def test_a_page_without_verify_has_no_such_tab(version: Path) -> None:
    made = write_look(version, version.parent / "page.html")
    page = page_of(made.path)
    assert "No faults" not in words(page)
    assert "faults" not in {attrs.get("id") for _, attrs in page.tags}
    assert "Is it sound?" in words(page)
