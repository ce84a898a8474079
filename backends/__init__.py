"""The backends of dali_storage, a file each; contract/reader.py has their contract."""
