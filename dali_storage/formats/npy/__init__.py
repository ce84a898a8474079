"""NumPy's .npy files, alone and in .npz archives: headers, and regions of arrays."""
