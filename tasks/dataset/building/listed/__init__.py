"""What is to be built: the listed samples, their shards, and what differs from the version before."""
