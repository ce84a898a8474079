"""Samples as the extents of a map: lookup, read plans and checks, for any engine that reads."""
