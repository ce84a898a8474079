"""Services of the machine for every other room: CUDA, processors, memory, waits, durations.

Nothing here knows a reader, a sample or DALI. Read `waiting` and `machine` first; `histogram` and
`profiling` serve the observers, `cuda` all memory that a GPU uses, `uninterrupted` the backends,
`version` messages. Imports contract/.
"""
