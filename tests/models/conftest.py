"""One thread: these models are tiny, and threads that wait for each other are slow on a busy machine."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def use_one_thread() -> None:
    torch.set_num_threads(1)
