"""The commands of `python -m dali_storage`, a module each, imported when it is asked for.

    doctor          which backends, devices and families work here
    data            how data would be read here; in a process of its own, for storage may hang
    index           the index files of containers
    index_samples   the index of a directory or of a prefix of objects
    index_coco      annotations, checked and parsed
    shards          directories that other loaders have written
    check           the bad samples
    prove           the comparison with DALI's reader
    unpack          Parquet files for `readers.parquet`
    receipt         the receipt of a data set
    replay          the samples of a step
    reader_options  the options that name a reader, for several commands

Each opens and closes what it reads. See `tests/docs/imports.txt`.
"""
