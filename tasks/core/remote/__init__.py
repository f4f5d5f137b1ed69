"""What lies on web servers and in buckets: how it is asked for, read and kept on this node."""
