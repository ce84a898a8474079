"""The modules of benchmark.py. They run from the repository and are not installed."""
