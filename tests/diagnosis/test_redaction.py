"""What `tarmac doctor` saves may be shown to anybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.diagnosis.observation.redaction import redacted, redacted_words


@pytest.mark.parametrize(
    "line",
    [
        "WANDB_API_KEY=hunter2secret",
        "--wandb-key hunter2secret"[:12] + "=hunter2secret",
        "Authorization: Bearer hunter2secret",
        "https://someone:hunter2secret@host/path",
        "https://bucket/x.tar?X-Amz-Signature=hunter2secret&b=1",
        "{'password': 'hunter2secret'}",
    ],
)
def test_a_secret_is_taken_out(line: str) -> None:
    assert "hunter2secret" not in redacted(line)


def test_a_secret_behind_its_option_is_taken_out_and_the_rest_stays() -> None:
    words = [
        "python",
        "train.py",
        "--hub_token",
        "hunter2secret",
        "--csv-img-key",
        "filepath",
        "--lr",
        "1e-4",
    ]
    shown = redacted_words(words)
    assert "hunter2secret" not in shown
    assert shown[4:] == ["--csv-img-key", "filepath", "--lr", "1e-4"]


@pytest.mark.parametrize(
    "line", ["KeyError: 'fname'", "KeyError: Caught KeyError in DataLoader worker process 0."]
)
def test_what_an_error_says_stays(line: str) -> None:
    assert redacted(line) == line


def test_the_home_folder_is_not_named() -> None:
    assert redacted(f"{Path.home()}/data/0.tar") == "~/data/0.tar"
