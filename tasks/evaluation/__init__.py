"""Evaluations of checkpoints: the evaluators, their statistics, and the result files they write."""
