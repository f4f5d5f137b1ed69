"""A page of a dataset's version, for eyes: what its samples look like, what was rejected and why, how its
numbers are distributed, and what verify found. Statistics find the fault one thought of; looking finds the
others.

Nothing grows with the dataset: tables are streamed into histograms of fixed bins, and a fixed number of
samples, spread evenly, is read through the index.
"""

from __future__ import annotations

from tasks.dataset.preview.checked import Checked, summary
from tasks.dataset.preview.page import Look, write_look
from tasks.dataset.preview.place import page_path, version_at

__all__ = ["Checked", "Look", "page_path", "summary", "version_at", "write_look"]
