"""Formats of samples: where they are in files, and what DALI gets of each. DALI is not imported."""
