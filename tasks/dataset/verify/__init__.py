"""Is a dataset sound? `run.verify` answers.

`place` finds what a person points at; `tars` lists, hashes and opens what lies there, `presence` sees it from
outside. `version` judges a version by its `seals` and `tables` (`rows` reads and compares these), `foreign`
tars of others. What no seal proves, `shard` examines: `scan` follows the tar, `sample_checks` holds the
rules, `decode` judges contents. `outcome` gathers the faults of all shards, `duplicates` adds what only all
of them together show, and `report` words them.
"""
