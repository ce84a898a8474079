"""Formats of samples: their places in files, and their outputs in DALI. DALI is not imported."""
