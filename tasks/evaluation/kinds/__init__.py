"""The kinds of evaluation that a task in a config may name, and what they share."""
