"""Samples as the extents of a map: lookup, read plans and checks, for any engine that reads.

Read `plan` and `segments` first, then `samples` (a batch from plan to check), `map`, `device`, and
the checks: `freshness`, `containers`, `read_only`. Imports contract/, files/, linux/ and
bmap_tools/.
"""
