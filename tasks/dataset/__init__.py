"""Raw data to versions of a dataset: sources, samples and their checks, plan, shards, manifest, verify."""
