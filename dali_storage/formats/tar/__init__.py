"""Tars of WebDataset: headers, indexes, and components of samples."""
