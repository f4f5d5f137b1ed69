"""Contrastive training of an image and a text tower by open_clip."""
