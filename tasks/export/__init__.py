"""Checkpoints as folders that other libraries load on their own, each with a proof that they say the same."""

from typing import Literal

Target = Literal["open_clip", "hf", "nanovlm"]
"""The formats by name; `run.FORMATS` says where each stands."""
