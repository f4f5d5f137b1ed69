"""Renders HTML pages as one self-contained file without scripts.

A page can be mailed, archived or opened years later, so its style is inline, images are data URIs and charts
are SVG. The base template forbids scripts to the browser as well, so that a hostile caption can do no harm.
The price is that nothing on a page can be sorted or zoomed.

A template is named `<package>/<file>` and lies in `tasks/<package>/templates/`: every package has its own and
may extend `core/base.html`.
"""

from __future__ import annotations

import base64
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from tasks.core import charts
from tasks.core.units import FILTERS


def render(template: str, **values: Any) -> str:
    """Render the page of `template` (such as `reporting/report.html`) with `values`.

    Values are escaped unless they are `markupsafe.Markup`. A missing value
    raises jinja2.UndefinedError. Text that UTF-8 cannot carry (lone surrogates) shows as `?`.
    """
    page = _environment().get_template(template).render(**values)
    return page.encode("utf-8", "replace").decode("utf-8")


def image_uri(content: bytes, mime: str) -> str:
    """Return `content` as a `data:` URI, for the `src` of an image."""
    return f"data:{mime};base64,{base64.b64encode(content).decode('ascii')}"


def _source(name: str) -> str | None:
    """Return a template's text, also from an installed wheel; None (TemplateNotFound) if there is none."""
    package, _, file = name.partition("/")
    template = files(f"tasks.{package}") / "templates" / file
    return template.read_text(encoding="utf-8") if template.is_file() else None


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({function.__name__: function for function in (*FILTERS, charts.layout)})
    environment.globals["frame"] = charts.FRAME
    return environment
