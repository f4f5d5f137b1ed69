"""CLIP that learns from teachers' embeddings of each pair, after MobileCLIP."""
