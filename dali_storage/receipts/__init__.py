"""Receipts: sums of hashes that prove which samples an epoch has delivered; see docs/receipts.md.

`combine()` adds the receipts of ranks, `join()` their states. The rest of this room is loaded for a
reader with `receipt=`: `hashing` works in the lanes, `ledger` adds up what reaches the user.
Imports contract/, order/, ranks/ and reading/.
"""

from .values import combine, join

__all__ = ["combine", "join"]
