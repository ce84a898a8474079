"""Positions that are saved, and epochs that other ranks go on with: arithmetic only.

Begin with `state`, checkpoints and states in plain types; `resume` is the rest of an epoch and its
order, `history` finds the steps of a run again. `saving.positions` uses them on a stream of
batches, and `dali.resume` adjusts DALI's iterators. Imports order/ and contract/.
"""
