"""Tokens of captions are counted by open_clip's own tokenizer, without the imports of the rest of it."""

from __future__ import annotations

import json
import subprocess
import sys

from open_clip import tokenizer

CAPTIONS = ["a photo of a dog", "Grüße aus München, 東京!", "it's 3.5 km &amp; more", ""]


def test_counts_are_open_clips_and_bring_no_torch() -> None:
    code = (
        "import json, sys\nfrom tasks.core.tokens import caption_counter\n"
        f"counts = list(map(caption_counter(), {CAPTIONS!r}))\n"
        "print(json.dumps([counts, sorted({'torch', 'timm', 'open_clip'} & set(sys.modules))]))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    counts, heavy = json.loads(shown)
    own = tokenizer.SimpleTokenizer()
    assert counts == [len(own.encode(caption)) + 2 for caption in CAPTIONS]
    assert heavy == []
