"""CT volumes: what the numbers must be, how they are prepared, and how shards hold them.

Everything that is stored is int16 HU of shape (depth, height, width). Arithmetic is plain numpy, element by
element, so that every machine stores the same bytes.
"""
