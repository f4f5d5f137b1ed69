"""A run's evaluations: what is wanted, submitted, followed and found."""
