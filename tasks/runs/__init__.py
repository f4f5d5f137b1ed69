"""A run on disk: its folder, identity, record, metrics, phases, checkpoints and jobs. Without torch."""
