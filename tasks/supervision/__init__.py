"""What stands beside a run: its agent, evaluation jobs, the gatherer of its wandb run, status and report."""
