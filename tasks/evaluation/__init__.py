"""Evaluations of checkpoints: what each kind computes, when it fits, and the result files it writes."""
