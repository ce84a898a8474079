"""The samples of a data set: DALI's rules for directories, lists, URLs and indexes."""
