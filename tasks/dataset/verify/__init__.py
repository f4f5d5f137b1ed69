"""How `tasks.dataset.verify.run` judges a dataset, from the outside in.

Where: `locate` finds what a person points at (`named`: by a pattern; `lost`: no version where there should be
one), `place` opens tars there (`gunzip`), `beside` the files beside them.

A version (`own_version`): `recorded` compares the files beside the tars with build.json's checksums, into a
`ledger`; `version` reads the tables (`tables`, `agreement`, `index`, `samples_table`, `leaks`; `parquet`
guards against torn ones); `files` looks at the tars from outside. Other tars (`foreign_tars`): `foreign`.

A shard (`inside`, from a `Task` to an `Inside` of `records`): `reader`, `entries`, `members` and
`walk` follow its bytes, `structure` many headers at once; `collected`, `whole`, `judging`, `rows` and `spans`
say what is wrong, `decoding` at the level full.

All shards: `outcome` gathers, `duplicates` (`spool`, `keys`) and `members_of` tell what only all of them
show, `reporting` and `ruling` word the report.
"""
