"""TFRecord files, for `readers.tfrecord` and `python -m dali_storage index`.

In the order to read:

    index     the places of records: from index files, or from the files themselves
    record    the header of a record, and the wanted features
    example   the values of the features in a `tf.train.Example`, in place
    places    remembers them, to parse a record once and not in every epoch
    features  the outputs of a batch

The catalog is made once, when a reader opens, and each file is closed after it was read. Outputs
are made in the lanes, of bytes in memory. Imports formats/ and contract/.
"""
