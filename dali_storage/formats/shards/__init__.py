"""Shards that MosaicML Streaming (MDS) and Lightning's litData have written.

    records   the tables of shards, and the columns of a batch: begin here
    mds       the index of an MDS data set
    litdata   the index of a litData data set

Both formats have one layout, and an index.json with the shards and their columns. The index and the
tables are read once, when a reader opens, and each file is closed. The columns of a batch are
split in the lanes. Imports formats/ and contract/.
"""
