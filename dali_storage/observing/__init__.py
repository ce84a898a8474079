"""Observers of a reader: what its threads do, for how long, and warnings when nothing goes on.

In the order to read: `activity` (the stages of each thread), `tally` (the counters), `stalls` (the
watchdog). Loaded when asked for: `statistics` (the figures for the user), `reporting` (the text of
reports and warnings), `kernel` (a thread and a mount in /proc), `signals` (the report by a signal).
`dali` puts an observer into every reader; a reader works without one.
Imports reading/, runtime/ and contract/.
"""
