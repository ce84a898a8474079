"""Drop-in readers for DALI's dynamic mode, in place of `ndd.readers`; see `DynamicReader`."""

import nvidia.dali.experimental.dynamic as ndd

from .reader import DynamicReader

__all__ = ["COCO", "File", "Numpy", "TFRecord", "Webdataset"]


class COCO(DynamicReader, ndd.readers.COCO, reader="coco"):  # type: ignore[misc]  # DALI has no types
    """`ndd.readers.COCO` with a choice of storage backend.

    `dali_storage.readers.coco` describes the arguments, outputs and errors, and `File` the common
    ones of all readers. An epoch gives tuples.
    """


class File(DynamicReader, ndd.readers.File, reader="file"):  # type: ignore[misc]  # DALI has no types
    """`ndd.readers.File` with a choice of storage backend.

    The arguments are the same, and so are samples, labels, order, shards and epochs, bit for bit;
    only `backend`, `backend_options`, `exclude`, `source_info` and `stall_after` are new, see
    `dali_storage.readers.file`. As there, bad arguments are refused at once, and missing files
    raise `FileNotFoundError`. `ndd.get_property(data, key="source_info")` needs source_info=True:
    there is no graph that shows who asks.

        reader = File(file_root=root, random_shuffle=True, backend="block", backend_options={...})
        for data, labels in reader.next_epoch(batch_size=64, capture=True):
            images = ndd.decoders.image(data, device="gpu")

    `DynamicReader` describes the methods, and the closing of a reader.
    """


class Numpy(DynamicReader, ndd.readers.Numpy, reader="numpy"):  # type: ignore[misc]
    """`ndd.readers.Numpy` with a choice of storage backend.

    `dali_storage.readers.numpy` describes the arguments and errors, and `File` the common ones of
    all readers. An epoch gives tuples of one array, or of one batch of arrays. The constructor gets
    the region (`roi_start`, `rel_roi_end` and so on) as numbers, arrays or tensors in host memory.
    As in DALI, fractions are rounded in arrays and tensors, and truncated in lists. An array of one
    number is for all axes, too. A call refuses regions, because files are read ahead.
    """

    def _pre_call(self, *inputs: object, **regions: object) -> None:
        """Refuse regions; DALI passes the arguments of a call of the reader."""
        for name in (name for name, value in regions.items() if value is not None):
            what = f"{name} must be given to the constructor of Numpy, not to a call"
            raise TypeError(f"{what}, because files are read ahead; or slice batches by ndd.slice")
        super()._pre_call()


class TFRecord(DynamicReader, ndd.readers.TFRecord, reader="tfrecord"):  # type: ignore[misc]
    """`ndd.readers.TFRecord` with a choice of storage backend.

    `dali_storage.readers.tfrecord` describes the arguments and errors, and `File` the common ones
    of all readers; `index_path` is optional. An epoch gives dictionaries by the names in
    `features`. As in DALI, a call also gives a dictionary, or the batch itself if there is only one
    feature.
    """


class Webdataset(DynamicReader, ndd.readers.Webdataset, reader="webdataset"):  # type: ignore[misc]
    """`ndd.readers.Webdataset` with a choice of storage backend.

    `dali_storage.readers.webdataset` describes the arguments and errors, and `File` the common ones
    of all readers; `index_paths` is optional. An epoch gives tuples in the order of `ext`.
    """
