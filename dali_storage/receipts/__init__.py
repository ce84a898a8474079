"""Receipts: sums of hashes that prove which samples an epoch has delivered; see docs/receipts.md.

`combine()` adds the receipts of ranks, `join()` their states. In the order to read:

    values   receipts as plain types
    hashing  the hashes of samples, made in the lanes
    ledger   the plug of a reader: adds up what reaches the user
    dataset  the comparison with the receipt of a data set

A reader with `receipt=` makes its ledger when it opens; states and checkpoints take it along.
Imports reading/, order/, ranks/ and contract/.
"""

from .values import combine, join

__all__ = ["combine", "join"]
