"""CT-CLIP: volumes and their reports."""
