"""What a wheel holds beside the code: the commit that it was built from, and where Python finds its packages.

In a wheel `flows` and `tasks` lie inside the package `tarmac`, for a reason that tarmac.py gives. An editable
install needs none of this: the checkout itself is on Python's path.
"""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SEARCHED_LAST = "zz_tarmac.pth"
"""Python reads the files of this kind in the order of their names."""


class CommitAndPath(BuildHookInterface[Any]):
    """Adds COMMIT to an sdist, and COMMIT, the front and the path to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory()
        home, made = Path(self.root), Path(self._folder.name)
        commit = made / "COMMIT"
        commit.write_text(runpy.run_path(str(home / "tarmac.py"))["commit"]() + "\n", encoding="ascii")
        if self.target_name == "sdist":
            build_data["force_include"][str(commit)] = "COMMIT"
            return
        path = made / SEARCHED_LAST
        path.write_text("tarmac\n", encoding="ascii")
        build_data["force_include"] |= {
            str(commit): "tarmac/COMMIT",
            str(path): SEARCHED_LAST,
            str(home / "tarmac.py"): "tarmac/__init__.py",
            str(home / "flows"): "tarmac/flows",
            str(home / "tasks"): "tarmac/tasks",
        }

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()
