"""Weights and tokenizers downloaded ahead from a stand-in hub, pinned, proven, mended, and used without it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tasks.core.config import load_config
from tasks.core.schema import Train
from tasks.models import hub, recipes
from tasks.models.needs import CONFIG, TOKENIZER, WEIGHTS, HubNeed, Need, PathNeed, UnknownNeed
from tests.hub import StandInHub, served

__all__ = ["served"]

NAME = "acme/words"
LONG_S = 120


def needs_of(recipe: str, **model: Any) -> list[Need]:
    train = {"recipe": recipe, "model": model, "batch_size": 4, "steps": 2, "lr": 0.1, "checkpoint_every": 2}
    return list(recipes.check_recipe(Train.model_validate(train)).needs)


def parts(needs: list[Need]) -> dict[tuple[str, str], list[str]]:
    """The names of the parts by key and repository."""
    return {
        (need.key, need.repository): [part.name for part in need.parts]
        for need in needs
        if isinstance(need, HubNeed)
    }


def test_each_recipe_says_what_it_needs() -> None:
    name, vision, language = "train.model", "google/siglip2-base-patch16-512", "HuggingFaceTB/SmolLM2-360M"
    assert needs_of("clip", name="tarmac/digits") == []
    tag = parts(needs_of("clip", name="ViT-B-32", pretrained="laion2b_s34b_b79k"))
    assert tag == {(f"{name}.pretrained", "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"): ["weights"]}
    tower = [
        (need.repository, [part.name for part in need.parts])
        for need in needs_of("clip", name="roberta-ViT-B-32")
        if isinstance(need, HubNeed)
    ]
    assert tower == [("roberta-base", ["config", "weights"]), ("roberta-base", ["tokenizer", "config"])]
    assert parts(needs_of("vlm", vision=vision, language=language)) == {
        (f"{name}.vision", vision): ["config", "weights", "picture settings"],
        (f"{name}.language", language): ["config", "weights", "tokenizer"],
    }
    reports = "microsoft/BiomedVLP-CXR-BERT-specialized"
    whole = needs_of("ct_clip", vision="ctvit", text=reports, pretrained="/no/ct_clip.pt")
    assert whole[0] == PathNeed(f"{name}.pretrained", "/no/ct_clip.pt")
    assert parts(whole) == {(f"{name}.text", reports): ["config", "tokenizer"]}
    words = ["python", "-m", "open_clip_train.main", "--pretrained", "openai"]
    found = parts(needs_of("external", name="ViT-B-32", command=words))
    assert found == {(f"{name}.pretrained", "timm/vit_base_patch32_clip_224.openai"): ["weights"]}
    (unknown,) = needs_of("external", command=["python", "train.py"])
    assert isinstance(unknown, UnknownNeed)


def test_the_format_that_will_be_loaded_is_taken() -> None:
    bits = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    assert WEIGHTS.chosen(["pytorch_model.bin", "model.safetensors"]) == {"model.safetensors"}
    assert WEIGHTS.chosen([*bits, "model.safetensors.index.json", "onnx/model.safetensors"]) == {
        *bits,
        "model.safetensors.index.json",
    }
    assert WEIGHTS.chosen([bits[0], "model.safetensors.index.json"]) is None, "one of two"
    assert TOKENIZER.chosen(["merges.txt", "tokenizer_config.json"]) is None
    assert TOKENIZER.chosen(["vocab.txt", "a.md"]) == {"vocab.txt"}
    assert CONFIG.chosen(["config.json", "generation_config.json"]) == {
        "config.json",
        "generation_config.json",
    }


def test_what_lies_at_a_path_is_looked_for_and_what_others_download_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, text="tarmac/reports", pretrained=str(tmp_path / "w.pt"))
    assert fetch(config, capsys, code=1)["findings"][0]["code"] == "weights.missing"
    assert main(["fetch", str(config)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("✗ weights.missing   train.model.pretrained: ") and str(tmp_path) in lines[0]
    assert re.match(r"    fix    \S+", lines[1])
    (tmp_path / "w.pt").touch()
    assert main(["fetch", str(config)]) == 0
    vlm = {"recipe": "vlm", "model": {"vision": "tarmac/chat", "language": "tarmac/chat", "pixel_shuffle": 2}}
    task = {"kind": "lmms_eval", "names": ["mmstar"]}
    described = json.loads(config.read_text())
    described["train"] |= vlm
    described["evaluate"] = {"every": 2, "tasks": [task]}
    config.write_text(json.dumps(described))
    (printed,) = fetch(config, capsys)["not_seen"]
    assert printed.startswith("evaluate.tasks: lmms_eval: lmms_eval downloads the data of mmstar itself")


def test_the_environment_is_what_huggingface_hub_takes_the_cache_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    for name, value in (("XDG_CACHE_HOME", "/a"), ("HF_HOME", "~/b"), ("HF_HUB_CACHE", "$HOME/c")):
        monkeypatch.setenv(name, value)
        theirs = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert str(hub.cache()) == theirs.stdout.strip()


def raw_model(folder: Path, weights: int = 50_000) -> Path:
    """A repository's files by name; what is in them counts only where they are loaded."""
    folder.mkdir()
    for name in ("config.json", "vocab.txt", "tokenizer_config.json", "README.md", "pytorch_model.bin"):
        (folder / name).write_text(f"{{}} {name}")
    (folder / "model.safetensors").write_bytes(os.urandom(weights))
    return folder


def write_config(folder: Path, **model: Any) -> Path:
    source = {"kind": "npz", "path": "raw", "array": "arr_0"}
    source |= {"reports": {"path": "r.csv", "key": "name", "text": ["report"]}}
    dataset = {"output": str(folder / "data"), "modality": "volume_report", "source": source}
    train = {"recipe": "ct_clip", "model": {"vision": "tarmac/phantoms", "text": NAME, **model}}
    train |= {"batch_size": 4, "steps": 4, "lr": 0.01, "checkpoint_every": 2}
    file = folder / "c.yaml"
    file.write_text(
        json.dumps({"name": "c", "runs": str(folder / "runs"), "dataset": dataset, "train": train})
    )
    return file


def fetch(config: Path, capsys: pytest.CaptureFixture[str], *options: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["fetch", str(config), "--json", *options]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_files_are_pinned_and_proven_and_the_next_fetch_asks_nobody(
    served: StandInHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = served.serve(NAME, raw_model(tmp_path / "raw"))
    config = write_config(tmp_path)
    (one,) = fetch(config, capsys)["repositories"]
    assert one["commit"] == commit and one["downloaded"] == one["size_bytes"] > 50_000
    kept = hub.read_lock(tmp_path / "runs").repositories[NAME].files
    assert kept.keys() == {"config.json", "vocab.txt", "tokenizer_config.json", "model.safetensors"}
    asked = len(served.asked)
    (again,) = fetch(config, capsys)["repositories"]
    assert again == {**one, "downloaded": 0} and len(served.asked) == asked

    newer = served.serve(NAME, raw_model(tmp_path / "newer"))
    assert fetch(config, capsys)["repositories"][0]["commit"] == commit, "the pin holds"
    assert fetch(config, capsys, "--update")["repositories"][0]["commit"] == newer
    assert hub.current(NAME) == newer


def test_a_damaged_file_is_named_by_preflight_and_mended_by_the_next_fetch(
    served: StandInHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = served.serve(NAME, raw_model(tmp_path / "raw"))
    config = write_config(tmp_path)
    settings = load_config(config)
    needs = hub.needs(settings)
    (lack,) = hub.lacks(needs, hub.read_lock(settings.runs))
    assert NAME in lack.problem and lack.finding().severity == "warning", "a training can download it still"
    fetch(config, capsys)
    lock = hub.read_lock(settings.runs)
    assert not list(hub.lacks(needs, lock, is_deep=True)) and hub.is_ready(needs, lock)
    path = hub.path_of(NAME, commit, "model.safetensors").resolve()
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    before = path.stat()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "seal_of", lambda *_: pytest.fail("weights were read as a training starts"))
        os.utime(path, ns=(1, 1))
        assert hub.is_ready(needs, lock), "a copied cache has other times"
    path.write_bytes(content)
    (lack,) = hub.lacks(needs, lock)
    assert "model.safetensors" in lack.problem and lack.finding().severity == "error"
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not list(hub.lacks(needs, lock)), "as by its size and time"
    assert list(hub.lacks(needs, lock, is_deep=True))
    (one,) = fetch(config, capsys)["repositories"]
    assert one["mended"] == ["model.safetensors"] and not list(hub.lacks(needs, lock, is_deep=True))
    path = hub.path_of(NAME, commit, "model.safetensors")
    path.unlink()
    assert not hub.is_ready(needs, lock)
    (lack,) = hub.lacks(needs, lock)
    assert "gone" in lack.problem


def test_a_killed_fetch_goes_on_with_the_byte_that_it_has_come_to(
    served: StandInHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served.serve(NAME, raw_model(tmp_path / "raw", weights=3_000_000))
    served.breaks = True
    config = write_config(tmp_path)
    command = [sys.executable, "-m", "flows.cli", "fetch", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    blobs = tmp_path / "home/hub/models--acme--words/blobs"
    deadline = time.monotonic() + LONG_S
    while not any(path.stat().st_size > 1_000_000 for path in blobs.glob("*.part")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    served.breaks, served.sent = False, 0
    (one,) = fetch(config, capsys)["repositories"]
    assert one["size_bytes"] > 3_000_000 > served.sent + 1_000_000


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("gone", r"train\.model\.text: http.* has no model acme/words; correct the name, or set HF_TOKEN"),
        ("gated", r"train\.model\.text: acme/words is gated: accept its terms at http.*HF_TOKEN"),
        ("shut", r"train\.model\.text: http.* does not serve acme/words \(.*refused.*\); fetch where"),
        ("hushed", r"train\.model\.text: http.* does not serve acme/words \(.*timed out.*\); fetch where"),
        ("lacking", r"train\.model\.text: acme/words has no weights that could be loaded"),
        ("offline", r"train\.model\.text: acme/words has to be downloaded: unset HF_HUB_OFFLINE"),
    ],
)
def test_a_hub_that_does_not_give_the_files_is_told_in_a_line(
    trouble: str,
    said: str,
    served: StandInHub,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = raw_model(tmp_path / "raw")
    if trouble == "lacking":
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").unlink()
    if trouble != "gone":
        served.serve(NAME, folder, gated=trouble == "gated")
    if trouble == "shut":
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    if trouble == "hushed":
        served.hushed.set()
        monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "1")
    if trouble == "offline":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    began = time.monotonic()
    code = main(["fetch", str(write_config(tmp_path))])
    found = capsys.readouterr().err.strip().splitlines()
    assert code == (1 if trouble in ("shut", "hushed") else 2) and time.monotonic() - began < LONG_S
    assert re.search(said, found[-1]), found
