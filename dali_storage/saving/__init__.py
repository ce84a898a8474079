"""Saving and restoring the position of a stream of batches, and changing its weights.

`positions` makes and reads checkpoints and states; `weights` changes a mixture while it runs. Both
work on the public values of a `BatchStream`, which knows neither. Imports reading/, order/,
order/resuming/, order/sampling/ and contract/.
"""
