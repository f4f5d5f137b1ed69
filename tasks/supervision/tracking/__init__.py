"""A run in the tracker: its one writer there, and its files read back."""
