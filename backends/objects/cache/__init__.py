"""A cache of samples of objects on a local disk."""
