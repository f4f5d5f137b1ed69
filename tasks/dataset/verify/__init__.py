"""Is a dataset sound? `verifier.verify` answers.

`place` finds what a person points at; `tars` lists, hashes and opens the tars and checks them from outside.
`version` judges a version by its `seals` and `version_tables` (which read rows by `rows`), `foreign` judges
tars of others. `examination` has every shard examined that no seal proves, gathers the faults, and adds those
that only all shards together show. `shard` examines one shard: `scan` follows and decodes the tar,
`sample_checks` holds the rules. `findings` puts the faults into words.
"""
