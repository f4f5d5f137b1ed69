"""Checkpoints in the folders of trainers: their numbers, what is whole, and who says that it is the last one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.core.files import write_json
from tasks.trainers import record_in
from tasks.trainers.saved import files_of_weights, lack_of, numbered, saved_in, stamped
from tests.trainers.handmade import save_weights, tear


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("epoch_3.pt", (3, "epoch")),
        ("checkpoint-500", (500, "step")),
        ("step_00000200", (200, "step")),
        ("step_1000", (1000, "step")),
        ("epoch=3-step=500.ckpt", (500, "step")),
        ("model_step_20.safetensors", (20, "step")),
        ("global_step120", (120, "step")),
        ("epoch_latest.pt", None),
        ("latest", None),
        ("ViT-B-32.pt", None),
        ("footstep_3.pt", None),
    ],
)
def test_a_name_gives_the_number_and_what_it_counts(name: str, number: tuple[int, str] | None) -> None:
    assert numbered(name) == number


def test_a_folder_shows_its_checkpoints_and_no_other_state(tmp_path: Path) -> None:
    for name in ("epoch_10.pt", "epoch_2.pt", "epoch_latest.pt", "optimizer_step_3.pt", "epoch_2.log"):
        save_weights(tmp_path / "checkpoints" / name)
    (tmp_path / "tmp-checkpoint-5").mkdir()
    (tmp_path / "checkpoints/.draft_step_4").mkdir()
    assert [(one.number, one.path.name) for one in saved_in(tmp_path)] == [
        (2, "epoch_2.pt"),
        (10, "epoch_10.pt"),
    ]
    assert saved_in(tmp_path) == saved_in(tmp_path / "checkpoints")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_torn_file_is_no_whole_checkpoint(tmp_path: Path, name: str) -> None:
    file = save_weights(tmp_path / "checkpoint-5" / name)
    assert lack_of(file.parent) == lack_of(file) == ""
    tear(file)
    assert lack_of(file.parent).startswith(f"{name} is torn")
    file.write_bytes(b"")
    assert lack_of(file) == f"{name} is empty"
    file.write_bytes(b"\x03\x00")
    assert lack_of(file) if name.endswith("safetensors") else not lack_of(file)


def test_a_checkpoint_in_several_files_is_whole_with_all_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-5"
    assert stamped(tmp_path) == {} and lack_of(tmp_path).endswith("(such as model.safetensors)")
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    save_weights(folder / shards[0])
    write_json(folder / "model.safetensors.index.json", {"weight_map": {"a": shards[0], "b": shards[1]}})
    assert stamped(folder) == {}, "one of them is yet to come"
    save_weights(folder / shards[1])
    assert len(stamped(folder)) == 3 and lack_of(folder) == ""
    assert files_of_weights(folder) == [folder / name for name in shards]
    tear(folder / shards[1])
    assert lack_of(folder).startswith(shards[1])


def test_an_index_leads_nowhere_else(tmp_path: Path) -> None:
    save_weights(tmp_path / "secret.safetensors")
    write_json(tmp_path / "in/model.safetensors.index.json", {"weight_map": {"a": "../secret.safetensors"}})
    assert files_of_weights(tmp_path / "in") == []


def test_the_record_of_each_trainer_says_how_far_it_came(tmp_path: Path) -> None:
    assert record_in(tmp_path) is None
    theirs = tmp_path / "open_clip"
    save_weights(theirs / "checkpoints/epoch_2.pt")
    (theirs / "params.txt").write_text("batch_size: 64\nepochs: 3\nepochs_cooldown: None\n")
    for place in (theirs, theirs / "checkpoints"):
        found = record_in(place)
        assert found is not None and (found.step, found.steps) == (2, 3)
    for step in (4, 8):
        state = {"global_step": step, "max_steps": 8}
        write_json(tmp_path / f"hf/checkpoint-{step}/trainer_state.json", state)
    found = record_in(tmp_path / "hf")
    assert found is not None and (found.step, found.steps) == (8, 8)
    write_json(tmp_path / "run/run.json", {"state": "running", "identity": {"steps": 40}})
    assert record_in(tmp_path / "run/checkpoints") is None
    write_json(tmp_path / "run/run.json", {"state": "succeeded", "identity": {"steps": 40}})
    found = record_in(tmp_path / "run/checkpoints")
    assert found is not None and (found.step, found.steps) == (40, 40)
