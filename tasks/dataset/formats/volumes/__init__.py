"""CT volumes: which numbers are plausible, how volumes are prepared, and how shards store them.

Stored volumes are int16 HU of shape (depth, height, width). Arithmetic is plain numpy, element by element, so
that every machine stores the same bytes.
"""
