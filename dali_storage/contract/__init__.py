"""The contract of a backend and of a format, and the values that they exchange.

Nothing of this package is imported here. `reader.py` is the page to read first.
"""
