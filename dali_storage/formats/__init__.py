"""Containers: what is where in them, and what DALI gets of a sample. No DALI, no threads."""
