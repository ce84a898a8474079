"""The commands of `python -m dali_storage`."""
