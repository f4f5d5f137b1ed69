"""CT-CLIP: contrastive training on CT volumes and their reports."""
