"""What a version of a dataset is on the disk: one reader and writer for each of its files."""
