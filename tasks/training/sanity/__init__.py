"""What a training that runs shows of its own mistakes."""
