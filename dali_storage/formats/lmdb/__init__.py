"""LMDB files, whose values are byte ranges."""
