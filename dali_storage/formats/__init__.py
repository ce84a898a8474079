"""Formats of samples: their places in files, and their outputs in DALI.

A format is two things: a catalog of ranges, and a `Format` that makes outputs of bytes. `plain` is
the smallest example, `kinds` names all. Neither DALI nor a backend is imported, only samples/ and
contract/.
"""
