"""From listed samples to finished shards and the files beside them."""
