"""Lets the site hold what lies beside `docs/`: README, CONTRIBUTING, CHANGELOG and deploy/README.md as pages.

Their text stays in one place, and each link stays as it is on GitHub: MkDocs resolves a link by the path of
its target, so this answers for paths outside `docs/`, too. A file that a page links to, such as a config,
comes along as a download. Links in HTML, of which MkDocs knows nothing, are resolved in the same way. The
trade-off is a subclass of MkDocs' `Files`, whose methods a later version may call in another way; the strict
build would show that.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

import jieba
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "../README.md": "readme/index.html",
    "../README.zh-CN.md": "zh/readme/index.html",
    "../CONTRIBUTING.md": "contributing/index.html",
    "../CHANGELOG.md": "changelog/index.html",
    "../deploy/README.md": "deploy/index.html",
}
"""The pages outside `docs/`, by their path from there, and where the site has them."""
DOWNLOADS = "repository"
"""Folder of the site for other files that pages link to."""
FIRST_IN_SEARCH = {"symptoms.md": 4, "zh/symptoms.md": 4}
"""How many times higher the search ranks a page: who searches for what a screen shows wants its section."""
LINK_IN_HTML = re.compile(
    r"""(?P<before><(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=")(?P<path>[^":#?\s]+)"""
)
NODE_IN_SEARCH = re.compile(r"(?P<end>\.id)(?P<rest>\}return \w+\},\w+\.TokenSet\.prototype\.intersect)")
"""In the script of the search, the end of a node's name: see `on_post_build`."""


class FilesOfRepository(Files):
    """The files of `docs/`, and whatever else of the repository a page links to."""

    def __init__(self, files: Files, config: MkDocsConfig) -> None:
        super().__init__(files)
        self.config = config
        for path, place in PAGES.items():
            self.append(self._outside(path, place))

    def get_file_from_path(self, path: str) -> File | None:
        path = path.removeprefix("../docs/")
        found = super().get_file_from_path(path)
        if found is None and path.startswith("../"):
            file = Path(self.config.docs_dir, path).resolve()
            if file.is_relative_to(ROOT) and file.is_file() and file.suffix != ".md":
                found = self._outside(path, f"{DOWNLOADS}/{file.relative_to(ROOT)}")
                self.append(found)
        return found

    def _outside(self, path: str, place: str) -> File:
        file = File(
            path,
            self.config.docs_dir,
            self.config.site_dir,
            self.config.use_directory_urls,
            dest_uri=place,
            inclusion=InclusionLevel.INCLUDED,  # else a path that begins with a dot is left out
        )
        file.name = place.partition("/")[0]  # else a README counts as the index of its section
        return file


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs calls this once it has listed `docs/`."""
    return FilesOfRepository(files, config)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """MkDocs calls this with the text of a page; the links in its HTML become the site's."""
    if page.file.src_uri in FIRST_IN_SEARCH:
        page.meta["search"] = {"boost": FIRST_IN_SEARCH[page.file.src_uri]}
    folder = posixpath.dirname(page.file.src_uri)

    def resolved(found: re.Match[str]) -> str:
        target = files.get_file_from_path(posixpath.normpath(posixpath.join(folder, found["path"])))
        return found["before"] + (target.url_relative_to(page.file) if target else found["path"])

    return LINK_IN_HTML.sub(resolved, markdown)


def on_page_context(context: dict[str, Any], page: Page, config: MkDocsConfig, **_: Any) -> dict[str, Any]:
    """MkDocs calls this before it draws a page. The theme's own words become those of the page's language,
    which a screen reader and the choice of a font then know.
    """
    config.theme["language"] = "zh" if page.url.startswith("zh/") else "en"
    return context


def on_page_content(html: str, **_: Any) -> str:
    """MkDocs calls this with the body of a page. A cell without words heads nothing, for a screen reader."""
    return re.sub(r"<th(?P<style>[^>]*)>\s*</th>", r"<td\g<style>></td>", html)


def on_config(config: MkDocsConfig) -> None:
    """The search cuts Chinese with jieba, which would log the load of its dictionary."""
    jieba.setLogLevel(logging.WARNING)


def on_post_build(config: MkDocsConfig) -> None:
    """MkDocs calls this once the site is written.

    The search joins equal ends of words in a tree, where a node is named by each next letter and the number
    of the node there, without a mark between two of them. With digits in words different nodes get one name,
    then a query leads to words that no page has, and nothing at all is found:
    https://github.com/olivernn/lunr.js/issues/503. A mark after each number mends it.
    """
    (script,) = Path(config.site_dir, "assets/javascripts/workers").glob("search.*.min.js")
    mended, places = NODE_IN_SEARCH.subn(r'\g<end>+"."\g<rest>', script.read_text(encoding="utf-8"))
    if places != 1:
        raise PluginError(f"{script}: not one place names the nodes of the search, but {places}")
    script.write_text(mended, encoding="utf-8")
