"""Examines a training command of another trainer before it starts: its tars, and its own pipeline on them."""
