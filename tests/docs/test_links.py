"""Every link of the docs leads to a file and a heading that exist, on GitHub and in the site."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.docs.pages import OUTSIDE, PAGES, ROOT, address_of, anchors, links

FOREIGN = re.compile(r"[a-z][a-z0-9+.-]*:")


@pytest.mark.parametrize("page", PAGES)
def test_each_link_leads_somewhere(page: str) -> None:
    broken = []
    for target in links(page):
        if FOREIGN.match(target):
            continue
        path, _, anchor = unquote(target).partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        file = file / "README.md" if file.is_dir() and anchor else file
        relative = os.path.relpath(file, ROOT)
        if not file.exists():
            broken.append(target)
        elif anchor and (file.suffix != ".md" or anchor not in anchors(relative)):
            broken.append(f"{target}: no such heading")
    assert broken == []


def test_the_site_is_built_without_a_warning_and_with_githubs_anchors(tmp_path: Path) -> None:
    """MkDocs, too, resolves each link and anchor; the headings have the ids that GitHub gives them."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for page in PAGES:
        html = (tmp_path / address_of(page) / "index.html").read_text(encoding="utf-8")
        ids = set(re.findall(r'<h[1-6] id="([^"]+)"', html)) | set(re.findall(r'<a id="([^"]+)"', html))
        numbered = {re.sub(r"_(\d+)$", r"-\1", one) for one in ids}  # of equal headings
        assert anchors(page) <= ids | numbered, page
        article = re.sub(r"<(pre|code)\b.*?</\1>", "", html, flags=re.S)
        unread = re.findall(r"<p>[^<]*\n(?:[-*] |\d+\. |\|)[^\n]*", article)
        assert unread == [], (
            f"{page}: a list or a table needs an empty line above it, or it is read as a text"
        )
        assert not re.search(r'(?:src|href)="(?:https?:)?//[^"]+\.(?:js|css|woff2?)"', html), page


def test_the_pages_beside_docs_are_in_the_site() -> None:
    from docs.hooks import PAGES as OF_SITE

    assert {f"../{page}": f"{address}index.html" for page, address in OUTSIDE.items()} == OF_SITE
