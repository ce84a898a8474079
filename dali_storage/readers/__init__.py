"""The drop-in operators: those of `nvidia.dali.fn.readers`, with a choice of storage backend."""

from ..dali import catalog, replaced, state
from .files import file
from .npy import numpy
from .recordio import mxnet
from .records import records
from .tfrecord import tfrecord
from .webdataset import webdataset

__all__ = ["catalog", "file", "mxnet", "numpy", "records", "replaced", "state", "tfrecord"]
__all__ += ["webdataset"]
