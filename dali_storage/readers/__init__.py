"""Drop-in operators for `nvidia.dali.fn.readers`, with a choice of storage backend."""

import sys
from typing import TYPE_CHECKING, Any

from ..dali import catalog, last_batch, progress, receipt, replaced, set_weights, state
from .caffe import caffe
from .caffe2 import caffe2
from .coco import coco
from .columns import columns
from .files import file
from .lmdb import lmdb
from .manifest import manifest
from .mix import mix
from .nemo_asr import nemo_asr
from .npy import numpy
from .npz import npz
from .recordio import mxnet
from .records import records
from .sequence import sequence
from .tfrecord import tfrecord
from .webdataset import webdataset

__all__ = [
    "caffe",
    "caffe2",
    "catalog",
    "coco",
    "columns",
    "file",
    "last_batch",
    "lmdb",
    "manifest",
    "mix",
    "mxnet",
    "nemo_asr",
    "npz",
    "numpy",
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

if not TYPE_CHECKING:  # a type checker would take any name

    def __getattr__(name: str) -> Any:
        """Raise AttributeError, which says what to use instead of `fn.readers.video`."""
        what = f"module {__name__!r} has no attribute {name!r}"
        if name in ("video", "video_resize"):
            what += ": use readers.file, then fn.decoders.video (docs/other-formats.md)"
        raise AttributeError(what, name=name, obj=sys.modules[__name__])
