"""Manifests: files with a JSON object for each sample, and the segments of sound that they name."""
