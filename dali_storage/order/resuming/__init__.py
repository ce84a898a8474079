"""Positions that are saved, and epochs that other ranks go on with.

`resume` is the rest of an epoch and its order, `state` the checkpoints and states in plain types,
`history` finds the steps of a run again.
Imports order/ and contract/.
"""
