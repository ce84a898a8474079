"""Compares our reader with DALI's own on the user's machine, data set and storage.

Where DALI has none, the package of the format takes its place.

In the order to read:

    checks    the comparisons, one after another
    orders    those of orders, checkpoints and ranks
    packages  that of bytes with the package of a format
    subject   the data set for both readers, and the meaning of their errors
    result    the result of a check

Only `python -m dali_storage prove` uses it. Each check opens and closes its own pipelines; nothing
is written. Imports bad_samples/, readers/, dali/, formats/, samples/ and contract/.
"""
