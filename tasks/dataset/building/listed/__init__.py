"""What is to be converted: the listed samples, the raw members that wait on the disk, and the shards."""
