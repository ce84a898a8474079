"""Compares `readers.file` with DALI's own reader on the user's machine, data set and storage."""
