"""What a run's agent does in one attempt besides its evaluations: tuning, attending the training, records."""
