"""A page of a dataset's version, for eyes: what its samples look like, what was rejected and why, how its
numbers are distributed, and what verify found. Statistics find the fault one thought of; looking finds the
others.

Nothing grows with the dataset: tables are streamed, and a fixed number of samples, spread evenly, is read
through the index.
"""

from __future__ import annotations

from tasks.dataset.preview.faults import Checked, summary
from tasks.dataset.preview.page import WrittenPage, page_path, version_at, write_look

__all__ = ["Checked", "WrittenPage", "page_path", "summary", "version_at", "write_look"]
