"""Samples as the extents of a map: lookup, read plans and checks, for any engine that reads.

In the order to read:

    plan        the device reads of a batch, as columns
    segments    the segments of many files, looked up by spans of bytes
    samples     a batch from plan to check: submission, retries, errors, holes
    map         loaded maps, and the files of a catalog in them
    device      the device with the mapped file system, compared with the map
    reader      the base class of the backends
    freshness   files compared with their map
    containers  the same for files with ranges
    read_only   periods without writes, in which one comparison is enough

A backend loads the map and opens the device in its constructor, and closes it in `close()`; lanes
read. Imports contract/, files/, linux/ and bmap_tools/.
"""
