"""The drop-in operators: those of `nvidia.dali.fn.readers`, with a choice of storage backend."""

from ..dali import catalog, progress, replaced, set_weights, state
from .files import file
from .mix import mix
from .npy import numpy
from .recordio import mxnet
from .records import records
from .tfrecord import tfrecord
from .webdataset import webdataset

__all__ = [
    "catalog",
    "file",
    "mix",
    "mxnet",
    "numpy",
    "progress",
    "records",
    "replaced",
    "set_weights",
    "state",
    "tfrecord",
    "webdataset",
]
