"""Samples by the extents of a map: found, planned, checked, whoever reads them."""
