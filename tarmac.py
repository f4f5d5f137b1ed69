"""The front of Tarmac: `tarmac` on the command line, and `import tarmac` for its version.

Tarmac's packages are named `flows` and `tasks`, as modules of a user's own may be. In an installation they
lie inside the package that this file becomes, where Python looks last (`zz_tarmac.pth`), so they hide nothing
from a user's processes. Tarmac's own processes look there first: this one by `main`, its children by
`tasks.core.process.child_environment`, and flow runs by the names that this module has for Prefect.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["commit", "main", "version"]

HOME = Path(__file__).resolve().parent
"""The folder that holds `flows` and `tasks`: the checkout, or the installed package."""

FOR_PREFECT = {
    "build_flow": "flows.build",
    "pipeline": "flows.pipeline",
    "verify_flow": "flows.verify",
    "evaluate_flow": "flows.evaluate",
    "doctor_flow": "flows.doctor",
    "enter": "flows.operate.folder",
    "names": "flows.operate.folder",
}
"""What deployments name, as `tarmac.build_flow`, and the modules that have it: flows, and the steps before a
run. Prefect puts the project's folder first on the path of a flow run's process, and `flows` may be the
project's own there."""


def __getattr__(name: str) -> Any:
    if name not in FOR_PREFECT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if sys.path[0] != str(HOME):
        sys.path.insert(0, str(HOME))
    return getattr(import_module(FOR_PREFECT[name]), name)


def main() -> int:
    """Run the command line; return its exit code."""
    sys.path.insert(0, str(HOME))
    from flows.cli import main

    return main()


def version() -> str:
    """Return the version with the commit of the code, such as `0.1.0 (585a2809c1f4)`; a `+` behind the
    commit marks a checkout with changes."""
    from importlib.metadata import version

    known = commit()
    return version("tarmac") + (f" ({known})" if known else "")


def commit() -> str:
    """Return the commit of the code; empty where neither a build nor git knows it."""
    kept = HOME / "COMMIT"  # written when the package was built
    if kept.exists():
        return kept.read_text(encoding="ascii").strip()
    if not (HOME / ".git").exists():
        return ""
    asked = ["git", "-C", str(HOME), "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
