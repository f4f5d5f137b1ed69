"""A page that shows a version of a dataset: its samples, what was rejected and why, the distributions of its
numbers, and what verify found. Statistics find the faults one thought of; looking at samples finds the
others.

Cost does not grow with the dataset: tables are streamed, and a fixed number of evenly spread samples is read
through the index.
"""

from __future__ import annotations

from tasks.dataset.preview.faults import Checked, summary
from tasks.dataset.preview.page import WrittenPage, page_path, version_at, write_look

__all__ = ["Checked", "WrittenPage", "page_path", "summary", "version_at", "write_look"]
