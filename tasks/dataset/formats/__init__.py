"""Reads and writes single members: pictures, arrays, volumes, tensors, packed files.

A format knows neither sources nor shards. Files made by others are read within limits: a size that a header
claims is compared with a limit, and with the bytes that exist, before memory of that size is allocated, and
nothing is unpickled.
"""

from __future__ import annotations


class Unjudged(Exception):
    """This machine cannot judge whether the content is sound, because a package is missing or the content is
    too large. This is no fault of the content."""
