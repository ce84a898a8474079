"""Parquet files whose images or sounds are stored as they are, for `readers.parquet`.

    catalog   the samples of all files, from indexes or a walk: begin here
    footer    which columns a file has, and what is refused; pyarrow parses footers and labels
    labels    the labels of all files, and the names of their classes
    pages     the walk over the pages of a column, from length to length
    compact   Thrift's compact protocol, and runs of small integers
    index     indexes, which keep the result of the walk

A reader makes the catalog once, when it opens, and closes each file. Values are never decompressed.
Imports formats/, contract/ and pyarrow, which is therefore imported by nobody else but `unpack`.
"""
