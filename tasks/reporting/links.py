"""Links from Prefect's pages to what Tarmac has written, which open in a browser on another machine."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

PAGES_URL = "TARMAC_PAGES_URL"
"""Names the environment variable with the URL under which the pages of the working directory are served."""


def link(path: Path) -> str:
    """The path in Markdown, as a link where its page is served; relative where it is in this directory."""
    relative = os.path.relpath(path)
    base = os.environ.get(PAGES_URL, "")
    if relative.startswith(".."):
        return f"`{path}`"
    return f"[{relative}]({base.rstrip('/')}/{quote(relative)})" if base else f"`{relative}`"
