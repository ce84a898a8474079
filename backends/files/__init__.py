"""Samples in files: opening, sizing, reading and closing many files at little cost."""
