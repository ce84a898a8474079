"""NumPy's .npy files, alone and in .npz archives, for `readers.numpy` and `readers.npz`.

Begin with `header`, an array and its type; `archive` finds arrays in .npz files, and `region` cuts
them. Headers are read by the backend with the rest of a file, those in archives when a reader
opens; no file stays open. Imports formats/, samples/ and contract/.
"""
