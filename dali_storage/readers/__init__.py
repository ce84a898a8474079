"""Drop-in operators for `nvidia.dali.fn.readers`, with a choice of storage backend."""

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
