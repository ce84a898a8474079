"""Samples that are files: many of them opened, sized, read and closed at little cost."""
