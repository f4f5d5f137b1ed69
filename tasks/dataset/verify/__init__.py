"""Is a dataset sound? `run.verify` answers.

`place` finds what a person points at, `tars` lists and opens what lies there. `version` judges a version by
the seals that `tables` reads, `foreign` tars of others. `shard` examines one tar, `decode` its members;
`outcome` gathers the faults of all, `duplicates` what only all together show, `report` words them.
"""
