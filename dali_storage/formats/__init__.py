"""Formats of samples: their places in files, and their outputs in DALI.

A format is two things: a catalog of ranges, and a `Format` that makes outputs of bytes. `plain` is
the smallest example; `recordio` and `pieces` are the other small ones. Several share `files`
(containers and indexes), `sealed` (the frame of our indexes), `lists` (of shards, by other tools),
`mixed` (several formats), `kinds` (types of outputs), `columns` and `numbers` (what users and JSON
give) and `wire` (protobuf). Neither DALI nor a backend is imported, only samples/ and contract/.
"""
