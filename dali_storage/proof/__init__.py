"""Compares our reader with DALI's own on the user's machine, data set and storage.

`subject` is the data set, `checks` the comparisons, `orders` those of orders and checkpoints.
Imports readers/, dali/, reading/, samples/ and contract/.
"""
