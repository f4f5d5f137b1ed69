"""Contrastive training of an image and a text tower from open_clip."""
