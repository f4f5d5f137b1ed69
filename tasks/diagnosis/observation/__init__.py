"""Observes a training from outside: /proc, samples read again, stacks, the machine, the log."""
