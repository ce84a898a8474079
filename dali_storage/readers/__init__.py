"""Drop-in operators for `nvidia.dali.fn.readers`, with a choice of storage backend.

This module holds names: an operator, and what it needs, is imported when it is first used.
"""

from typing import TYPE_CHECKING

from ..contract.faces import hold_names

if TYPE_CHECKING:
    from ..dali.queries import catalog, last_batch, progress, receipt, replaced, set_weights, state
    from .batches import ReaderBatch, ReaderBatches, batches
    from .caffe import caffe
    from .caffe2 import caffe2
    from .coco import coco
    from .columns import columns
    from .files import file
    from .litdata import litdata
    from .lmdb import lmdb
    from .manifest import manifest
    from .mds import mds
    from .mix import mix
    from .nemo_asr import nemo_asr
    from .npy import numpy
    from .npz import npz
    from .parquet import parquet
    from .recordio import mxnet
    from .records import records
    from .sequence import sequence
    from .tfrecord import tfrecord
    from .webdataset import webdataset

__all__ = [
    "ReaderBatch",
    "ReaderBatches",
    "batches",
    "caffe",
    "caffe2",
    "catalog",
    "coco",
    "columns",
    "file",
    "last_batch",
    "litdata",
    "lmdb",
    "manifest",
    "mds",
    "mix",
    "mxnet",
    "nemo_asr",
    "npz",
    "numpy",
    "parquet",
    "progress",
    "receipt",
    "records",
    "replaced",
    "sequence",
    "set_weights",
    "state",
    "tfrecord",
    "webdataset",
]

_OTHERS = {
    "..dali.queries": "catalog last_batch progress receipt replaced set_weights state",
    ".batches": "ReaderBatch ReaderBatches batches",
    ".files": "file",
    ".npy": "numpy",
    ".recordio": "mxnet",
}
_VIDEO = ": use readers.file, then fn.decoders.video (docs/other-formats.md)"

hold_names(
    __name__,
    {f".{name}": name for name in __all__} | _OTHERS,
    dict.fromkeys(("video", "video_resize"), _VIDEO),
)
