"""NumPy's .npy files: headers, and regions of arrays."""
