"""The observer of a reader: what its threads do, for how long, and warnings when one hangs.

Begin with `meter`, the only module that a reader needs; `dali` puts a `Meter` into every reader.
Loaded when asked for, or when a thread hangs: `statistics` (the figures for the user), `stalls`
(the warnings), `reporting` (the text of warnings and reports), `kernel` (a thread and a mount in
/proc), `signals` (the report by a signal).
Imports reading/, runtime/ and contract/.
"""
