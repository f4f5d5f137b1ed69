"""Every test file on disk is one that pytest collects: a folder that its settings skip would pass in silence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLLECT = """
import pytest

class Names:
    def pytest_pycollect_makemodule(self, module_path, parent):
        print("collected", module_path)
        return Unread.from_parent(parent, path=module_path)

class Unread(pytest.Module):
    def collect(self):
        return []

pytest.main(["--collect-only", "-p", "no:cacheprovider", "-p", "no:xdist"], plugins=[Names()])
"""


def test_every_test_file_is_collected() -> None:
    listed = subprocess.run(
        [sys.executable, "-c", COLLECT], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    collected = {Path(line[10:]) for line in listed.stdout.splitlines() if line.startswith("collected ")}
    on_disk = set((ROOT / "tests").rglob("test_*.py"))
    assert on_disk - collected == set(), listed.stderr
    assert len(on_disk) > 200
