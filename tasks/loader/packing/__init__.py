"""Several samples in one row: how long samples are, and which of them share a row."""
