"""A page of a dataset's version, for eyes: what its samples look like, what was rejected and why, and how its
numbers are distributed. Statistics find the fault one thought of; looking finds the others.

Nothing grows with the dataset: tables are streamed into histograms of fixed bins, and a fixed number of
samples, spread evenly, is read through the index.
"""

from __future__ import annotations

from tasks.dataset.look.page import Look, write_look
from tasks.dataset.look.place import page_path

__all__ = ["Look", "page_path", "write_look"]
