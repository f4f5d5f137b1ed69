"""What `tasks.dataset.verify` looks at: tables, files, index, and the inside of each shard."""
