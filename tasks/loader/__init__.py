"""From shards to batches of tensors, the same whatever the number of workers."""
