"""The parts of benchmark.py, which is run from the repository and never installed."""
