"""How single members are read and written: pictures, arrays, volumes, tensors, packed files.

A format knows neither sources nor shards. What others made is read within limits: a size that a header claims
is compared with a limit, and with what is there, before anything of that size is made, and nothing is
unpickled.
"""

from __future__ import annotations


class Unjudged(Exception):
    """Nothing on this machine can tell whether the content is sound, as a package is missing or it is too
    large; that is no fault of the content."""
