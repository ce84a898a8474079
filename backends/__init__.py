"""The backends of dali_storage, one file each; reader.py has their contract."""
