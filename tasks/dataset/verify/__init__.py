"""Is a dataset sound? `run.verify` answers.

`place` finds what a person points at; `tars` lists, hashes and opens the tars and sees them from outside.
`version` judges a version by its `seals` and `tables` (whose rows `rows` reads), `foreign` tars of others.
`outcome` has every shard that no seal proves examined, and gathers the faults: `shard` examines one, `scan`
follows and decodes the tar, `sample_checks` holds the rules. `duplicates` adds what only all shards together
show, and `report` words it.
"""
