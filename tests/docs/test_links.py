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


@pytest.mark.parametrize("page", PAGES)
def test_code_in_a_table_has_no_bar(page: str) -> None:
    """GitHub wants one escaped, and the site shows the backslash, which whoever copies it then has."""
    assert (
        re.findall(r"^\|.*`[^`|]*\\\|[^`]*`", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE) == []
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The site, and what MkDocs printed. It goes on after a warning here, so that one test shows one problem."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stderr


def test_the_site_is_built_without_a_warning(built: tuple[Path, str]) -> None:
    """So that `make docs`, which is strict, builds it: each link and anchor leads somewhere in the site, too."""
    _, printed = built
    assert "Documentation built" in printed
    assert [line for line in printed.splitlines() if line.startswith(("WARNING", "ERROR"))] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_reads_in_the_site_as_on_github(built: tuple[Path, str], page: str) -> None:
    folder, _ = built
    html = (folder / address_of(page) / "index.html").read_text(encoding="utf-8")
    ids = set(re.findall(r'<h[1-6] id="([^"]+)"', html)) | set(re.findall(r'<a id="([^"]+)"', html))
    numbered = {re.sub(r"_(\d+)$", r"-\1", one) for one in ids}  # of equal headings
    assert anchors(page) <= ids | numbered
    article = re.sub(r"<(pre|code)\b.*?</\1>", "", html, flags=re.S)
    unread = re.findall(r"<p>(?:(?!</p>).)*\n((?:[-*] |\d+\. |\|)[^\n]*)", article, flags=re.S)
    assert unread == [], "a list or a table needs an empty line above it, or it is read as a text"


def test_the_pages_beside_docs_are_in_the_site() -> None:
    from docs.hooks import PAGES as OF_SITE

    assert {f"../{page}": f"{address}index.html" for page, address in OUTSIDE.items()} == OF_SITE
