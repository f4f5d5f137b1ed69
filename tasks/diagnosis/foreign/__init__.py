"""Somebody's training command before it starts: what its tars hold and its own pipeline makes of that."""
