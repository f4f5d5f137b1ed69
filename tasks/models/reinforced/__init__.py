"""CLIP that learns from what teachers said of each pair, after MobileCLIP."""
