"""An export in a repository of a stand-in hub: what arrives, what its card says, and what is refused."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import yaml
from safetensors.torch import save_file

from flows import cli
from tasks.core import config as configs
from tasks.core.files import read_json, write_json
from tasks.export import Target, hub_push
from tasks.export import run as exports
from tasks.export.hub_push import Pushed, push
from tasks.export.model_card import LOCAL, MARKER, hide_paths
from tasks.runs.folder import RunFolder
from tests.export.runs import STEP, run_of
from tests.export.test_formats import Write, trained
from tests.export.test_run import stand_in
from tests.hub import Repository, StandInHub, is_large, served

__all__ = ["served"]
NAME = "us/digits"
RESULT = {
    "task": "zero_shot",
    "step": STEP,
    "checkpoint": "checkpoints/step_00000040",
    "metrics": {"top1": 0.9612},
    "intervals": {"top1": [0.93, 0.979]},
    "chance": {"top1": 0.1},
    "split": "val",
    "samples": 270,
    "notes": ["Names were taken from patient-17."],
    "seconds": 1.0,
    "versions": {},
}


def made(folder: Path, target: Target = "open_clip") -> tuple[RunFolder, Path]:
    """A run with a result, and the export of its checkpoint, which a stand-in for the other library proves: the
    real one takes seconds to be imported."""
    recipe = "vlm" if target == "nanovlm" else "clip"
    run = run_of(folder, recipe)
    identity = {"model": {"name": "tarmac/digits", "pretrained": "blake3:0123456789ab"}}
    data = [{"dataset": str(folder / "data/patient-17"), "version": "0123456789ab", "weight": 1.0}]
    record = {"name": recipe, "identity": identity, "data": data, "state": "succeeded"}
    write_json(run.record, {**read_json(run.record), **record})
    write_result(run, RESULT)
    (folder / "asked").mkdir()
    write: Write = resolve_name(exports.FORMATS[target].writer)
    answers = write(trained(folder / "again", recipe), folder / "asked").question.answers
    save_file(
        {name: value.contiguous() for name, value in answers.items()},
        folder / "answers",
        {"library": f"a library in {folder}"},
    )
    python = stand_in(folder, f'cp {folder}/answers "$3/answers.safetensors"')
    (folder / "models").mkdir()
    (folder / "models/vision_language_model.py").touch()
    source = folder if target == "nanovlm" else None
    return run, exports.export(str(run.path), folder, target, folder / "made", python, source).path


def files_of(place: Path) -> list[str]:
    found: list[str] = list(read_json(place / "export.json")["files"])
    return found


def write_result(run: RunFolder, result: dict[str, Any]) -> None:
    path = run.evaluation(result["step"], result["task"])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, result)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Path]:
    """Nobody may change it."""
    return made(tmp_path_factory.mktemp("exported"))


@pytest.fixture
def allowed(served: StandInHub, monkeypatch: pytest.MonkeyPatch) -> StandInHub:
    """The hub, which knows the user whose token the environment holds."""
    served.users["hf_us"] = "us"
    monkeypatch.setenv("HF_TOKEN", "hf_us")
    return served


def pushed(exported: tuple[RunFolder, Path], name: str = NAME) -> Pushed:
    run, place = exported
    return push(place, run, name, lambda done, total, note: None)


def newest(hub: StandInHub, name: str = NAME) -> dict[str, bytes]:
    repository = hub.repositories[name]
    return repository.commits[repository.at("main")]


def test_a_private_repository_holds_the_export_and_its_card(
    exported: tuple[RunFolder, Path], allowed: StandInHub
) -> None:
    found = pushed(exported)
    files, (_, place) = newest(allowed), exported
    assert allowed.repositories[NAME].private and found.is_private
    assert files.keys() == {".gitattributes", "README.md", "export.json", *files_of(place)}
    for name in files_of(place):
        assert files[name] == (place / name).read_bytes()
    assert found.files == len(files) - 1 and not found.keeps_card
    assert (found.url, found.commit) == (f"{allowed.url}/{NAME}", allowed.repositories[NAME].at("main"))
    record = json.loads(files["export.json"])
    assert record["usage"] == f"open_clip.create_model_and_transforms('hf-hub:{NAME}')"
    assert str(place).encode() not in b"".join(files.values()) and record["proof"]["python"] == LOCAL
    _, head, card = files["README.md"].decode().split("---\n", 2)
    facts = {"library_name": "open_clip", "pipeline_tag": "zero-shot-image-classification"}
    assert yaml.safe_load(head) == {**facts, "tags": ["tarmac"]}
    assert f"model, _, transform = {record['usage']}\n" in card and MARKER in card
    assert "| zero_shot | top1 | 0.961 | 0.930 to 0.979 | 0.100 | 270 | val |" in card
    assert "| clip | 0123456789ab | no longer known here |" in card
    assert "pretrained: blake3:0123456789ab" in card and "batch_size: 4" in card and "lr: 0.1" in card
    assert "Names were taken from patient-17." in card
    assert "this repository holds no sample" not in card


def test_an_unchanged_export_is_not_pushed_again_and_new_scores_alone_are(
    tmp_path: Path, allowed: StandInHub
) -> None:
    exported = made(tmp_path)
    pushed(exported)
    allowed.asked.clear()
    again = pushed(exported)
    assert (again.files, again.size_bytes) == (0, 0)
    assert not [one for one in allowed.asked if one.startswith(("POST", "PUT"))]
    write_result(exported[0], {**RESULT, "metrics": {"top1": 0.5}})
    allowed.asked.clear()
    assert pushed(exported).files == 1 and len(allowed.repositories[NAME].commits) == 3
    assert b"| 0.500 |" in newest(allowed)["README.md"]
    assert not [one for one in allowed.asked if one.startswith("PUT")]


@pytest.mark.proof
def test_a_readme_of_somebody_is_kept_and_files_that_are_gone_go(tmp_path: Path, allowed: StandInHub) -> None:
    _, place = exported = made(tmp_path)
    allowed.repositories[NAME] = Repository()
    allowed.repositories[NAME].add({".gitattributes": b"", "README.md": b"my own words"})
    record = read_json(place / "export.json")
    (place / "old.bin").write_bytes(b"old")
    write_json(place / "export.json", {**record, "files": {**record["files"], "old.bin": "x"}})
    found = pushed(exported)
    assert found.keeps_card and not found.is_private and "old.bin" in newest(allowed)
    write_json(place / "export.json", record)
    assert pushed(exported).files == 2, "the record, and the file that goes"
    assert newest(allowed)["README.md"] == b"my own words" and "old.bin" not in newest(allowed)


@pytest.mark.proof
def test_a_push_that_was_killed_goes_on(tmp_path: Path, allowed: StandInHub) -> None:
    """Killed when some large files have arrived, which are not in the repository until all have."""
    run, place = exported = made(tmp_path, "nanovlm")
    program = (
        "import sys; from pathlib import Path; from tasks.export.hub_push import push; "
        "from tasks.runs.folder import RunFolder; "
        "push(Path(sys.argv[1]), RunFolder(Path(sys.argv[2])), sys.argv[3], print)"
    )
    allowed.stops_after = 1
    pushing = subprocess.Popen([sys.executable, "-c", program, str(place), str(run.path), NAME])
    wait_for(lambda: allowed.hushed.is_set())
    pushing.send_signal(signal.SIGKILL)
    pushing.wait()
    assert newest(allowed).keys() == {".gitattributes"}, "nobody sees half of a model"
    arrived = len(allowed.objects)
    allowed.hushed.clear()
    allowed.stops_after = math.inf
    allowed.asked.clear()
    pushed(exported)
    large = [one for name, one in newest(allowed).items() if is_large(name, len(one))]
    assert 0 < arrived < len(large)
    assert len([one for one in allowed.asked if one.startswith("PUT")]) == len(large) - arrived
    assert (place / "model.safetensors").read_bytes() in large


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_private_data_leave_counts_alone(tmp_path: Path, allowed: StandInHub) -> None:
    run, _ = exported = made(tmp_path)
    config = configs.reload(run.config)
    assert config.train is not None
    private = config.dataset.model_copy(update={"private": True, "license": "mit"})
    run.config.write_text(configs.dump(config.model_copy(update={"dataset": private})))
    record = read_json(run.record)
    model = {"name": "tarmac/digits", "config": "secret/patient-17.json", "command": [f"--data={tmp_path}"]}
    write_json(run.record, {**record, "identity": {"model": model}})
    pushed(exported)
    told = b"".join(content for name, content in newest(allowed).items() if not name.endswith("tensors"))
    assert b"patient-17" not in told and str(tmp_path).encode() not in told
    assert b"The data are private" in told and b"The dataset's licence is mit." in told
    assert b"| zero_shot | top1 | 0.961 |" in told


@pytest.mark.proof
def test_the_weights_that_it_began_with_are_named_with_their_licences(
    tmp_path: Path, allowed: StandInHub
) -> None:
    run, _ = exported = made(tmp_path)
    known = {"name": "ViT-B-32", "pretrained": "laion2b_s34b_b79k"}
    config = configs.reload(run.config)
    assert config.train is not None
    train = config.train.model_copy(update={"model": known})
    run.config.write_text(configs.dump(config.model_copy(update={"train": train})))
    base = "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"
    allowed.repositories[base] = Repository(card={"license": "mit"})
    allowed.repositories[base].add({"x": b""})
    pushed(exported)
    card = newest(allowed)["README.md"].decode()
    assert yaml.safe_load(card.split("---\n", 2)[1])["base_model"] == [base]
    assert f"[{base}]({allowed.url}/{base}), whose licence is mit." in card
    allowed.repositories[base].private = True
    pushed(exported)
    assert base not in newest(allowed)["README.md"].decode(), "who reads it may not know of it"


def test_nanovlm_finds_its_tokenizer_in_the_repository(tmp_path: Path, allowed: StandInHub) -> None:
    _, place = exported = made(tmp_path, "nanovlm")
    pushed(exported)
    files = newest(allowed)
    assert json.loads(files["config.json"])["lm_tokenizer"] == NAME
    assert files["tokenizer.json"] == (place / "tokenizer/tokenizer.json").read_bytes()
    there = tmp_path / "there"
    there.mkdir()
    for name, content in files.items():
        (there / name).write_bytes(content)
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(there)("Ah<|image|>", add_special_tokens=False).input_ids
    assert found == AutoTokenizer.from_pretrained(place / "tokenizer")("Ah<|image|>").input_ids


@pytest.mark.parametrize(
    ("repository", "files", "error", "says"),
    [
        (
            "them/digits",
            None,
            2,
            r"the token may not write to them/digits \(You don't have the rights .*; name",
        ),
        ("us/taken", None, 2, r"refuses us/taken: taken is a reserved name"),
        (
            "us/other",
            {"model.bin": b"x"},
            2,
            "us/other holds something else, such as model.bin; name another",
        ),
        ("us/other", {"export.json": b"{}"}, 2, "us/other holds an export of something else"),
        (
            "us/other",
            {"export.json": b'{"format": "hf", "run": "clip-1"}'},
            2,
            "us/other holds an export of clip-1 for hf; name another repository",
        ),
    ],
)
def test_what_the_hub_does_not_take_is_told_in_a_line(
    repository: str,
    files: dict[str, bytes] | None,
    error: int,
    says: str,
    exported: tuple[RunFolder, Path],
    allowed: StandInHub,
) -> None:
    if files is not None:
        allowed.repositories[repository] = Repository()
        allowed.repositories[repository].add(files)
    with pytest.raises(exports.UsageError, match=f"--push: .*{says}") as caught:
        pushed(exported, repository)
    assert caught.value.exit_code == error and "\n" not in str(caught.value)


@pytest.mark.proof
def test_a_token_that_is_wrong_or_a_hub_that_is_away_is_told_in_a_line(
    exported: tuple[RunFolder, Path], allowed: StandInHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    with pytest.raises(exports.UsageError, match=r"refuses the token \(Invalid username .*\); set HF_TOKEN"):
        pushed(exported)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(exports.DataError, match=r"http://127.0.0.1:9 does not take the export .*: .* stays"):
        pushed(exported)
    monkeypatch.setenv("HF_ENDPOINT", allowed.url)
    monkeypatch.setattr(hub_push, "PATIENCE_S", 2)
    allowed.hushed.set()
    with pytest.raises(exports.DataError, match=r"nothing moved for 2 s, MB, asking for us/digits\); push"):
        pushed(exported)


def test_before_anything_is_exported_name_token_and_network_are_looked_at(
    tmp_path: Path, allowed: StandInHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path, "clip")
    words = ["export", str(run.path), "--to", "open_clip", "--out", str(tmp_path / "out"), "--push"]

    def refused(name: str) -> str:
        assert cli.main([*words, name]) == 2
        return capsys.readouterr().err

    for name in ("digits", "a/b/c", "us/a b", "us/"):
        assert f"--push: {name!r} is no name of a repository; give OWNER/NAME" in refused(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "--push: HF_HUB_OFFLINE keeps everything from asking the hub; unset it" in refused(NAME)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    assert "--push: there is no token for the hub; set HF_TOKEN" in refused(NAME)
    assert not (tmp_path / "out").exists() and not allowed.asked


def test_the_command_prints_where_it_is(
    exported: tuple[RunFolder, Path], allowed: StandInHub, capsys: pytest.CaptureFixture[str]
) -> None:
    run, place = exported
    words = ["export", str(run.checkpoint(STEP)), "--to", "open_clip", "--out", str(place), "--push", NAME]
    assert cli.main(words) == 0
    assert f"  pushed  {allowed.url}/{NAME} (private): 4 files changed, " in capsys.readouterr().out
    assert cli.main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["up_to_date"] and said["pushed"]["up_to_date"] and said["pushed"]["repository"] == NAME
    assert cli.main(words) == 0
    assert "(private): unchanged" in capsys.readouterr().out


def test_paths_are_hidden(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    given = {
        "a": [str(tmp_path), "~/x", "../x"],
        "b": f"lib in {tmp_path}/a b",
        "c": ["google/x", "a / b", 1],
    }
    shown = {"a": [LOCAL] * 3, "b": f"lib in {LOCAL}", "c": ["google/x", "a / b", 1]}
    assert hide_paths(given) == shown
    assert hide_paths(["google/x", "x/y", "tarmac/chat"], {"google/x"}) == ["google/x", LOCAL, "tarmac/chat"]
