"""What is seen of a training from outside: /proc, samples read again, stacks, the machine, the log."""
