"""The backends that ship with dali_storage, one file each; their contract is in reader.py."""
