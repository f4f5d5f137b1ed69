"""Links from Prefect's pages to files of Tarmac, which open in a browser on another machine."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

PAGES_URL = "TARMAC_PAGES_URL"
"""The environment variable with the URL under which the pages of the working directory are served."""


def link(path: Path) -> str:
    """Format the path in Markdown, as a link where its page is served; relative below this directory."""
    relative, base = os.path.relpath(path), os.environ.get(PAGES_URL, "")
    if relative.startswith(".."):
        return f"`{path}`"
    return f"[{relative}]({base.rstrip('/')}/{quote(relative)})" if base else f"`{relative}`"
