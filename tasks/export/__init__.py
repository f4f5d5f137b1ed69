"""Export checkpoints as folders that other libraries load on their own, each proven to give the
same answers."""

from typing import Literal

Target = Literal["open_clip", "hf", "nanovlm"]
"""The formats by name; `run.FORMATS` holds the writer and the proof of each."""
