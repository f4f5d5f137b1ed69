"""Judges pictures and captions of a dataset by a CLIP model: `tarmac score`."""
