"""The contract of a backend and of a format, and the values that they exchange.

Read `reader` first, then `catalog`, `ranges` and `views` (values), `format`, `objects`, `options`,
`registry`, `errors`, and `stages` (what a thread tells its observer). `remote` and `devices` are
capabilities of some backends, `describing` is one of some formats; `faces` are packages that hold
names, `families` what can be missing. Imports nothing of ours.
"""
