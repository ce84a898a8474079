"""Saving and restoring the position of a stream of batches, and changing its weights.

`positions`, of the family resuming, makes and reads checkpoints and states; `weights`, of the
family mixtures, changes a mixture while it runs. Both work on the public values of a `BatchStream`,
which knows neither, and own nothing. Imports reading/, order/, order/resuming/, order/sampling/ and
contract/.
"""
