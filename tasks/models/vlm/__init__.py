"""Vision-language models after nanoVLM's design."""
