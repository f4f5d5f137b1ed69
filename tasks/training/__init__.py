"""From batches to checkpoints: the loop, its schedule, what it measures, and how it resumes."""
