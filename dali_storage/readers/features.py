"""Types and shapes of nvidia.dali.tfrecord's `Feature`, found by a run of DALI's own reader."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..dali.self_test import in_memory  # first: without DALI, it says how to install DALI

# isort: split
from nvidia.dali import Pipeline, ops, tfrecord

from ..formats.tfrecord import example
from ..formats.tfrecord.record import FOOTER, HEADER, Feature

_TFRecord = ops.readers.TFRecord  # now, because the name may later be our reader's
if _TFRecord.__module__ != "nvidia.dali.ops.readers":
    what = f"nvidia.dali.ops.readers.TFRecord is {_TFRecord!r}"
    raise ImportError(f"{what}: use dali_storage.readers.tfrecord before replacing DALI's reader")


def describe(features: Any) -> dict[str, Feature]:
    """The requested type and shape of each feature, by name.

    DALI's reader runs twice, in a CPU pipeline of its own, on a record in memory. From a record
    without the features, the outputs show their types. From a record of empty lists, the outputs
    show their shapes; a VarLenFeature has a shape of (0, ...).

    Raises:
        ValueError: there are no features, or DALI does not read one of them.
        TypeError: not a mapping of names to features.
    """
    _check(features)
    # In a thread of its own, which has no current pipeline: DALI traces the calls in the definition
    # of a pipeline, which fails for a nested pipeline (DALI's conditionals, AutoGraph).
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_describe, features).result()


def _describe(features: Mapping[str, Any]) -> dict[str, Feature]:
    kinds = {name: Feature(dtype).kind for name, (dtype, _) in _run(features, b"").items()}
    entries = b"".join(_entry(name, kind) for name, kind in kinds.items())
    try:
        return {name: _feature(*found) for name, found in _run(features, entries).items()}
    except (RuntimeError, ValueError):  # of DALI, of numpy
        for name in features if len(features) > 1 else ():
            _describe({name: features[name]})  # a wrong feature is refused here, too
    what = "its shape must be of an array that fits in memory"
    if example.BYTES in kinds.values():
        what = "a string must be a FixedLenFeature of shape (): the first one is read"
    raise ValueError(f"features[{next(iter(features))!r}]: {what}")


def _check(features: Any) -> None:
    if not isinstance(features, Mapping):
        raise TypeError(f"features must be a dict of names and features, not {features!r}")
    if not features:
        raise ValueError("features must not be empty: name the features for the pipeline")
    for name, feature in features.items():
        if not isinstance(name, str):
            raise TypeError(f"features must have strings for names, not {name!r}")
        if name.encode(errors="replace").decode() != name:  # has surrogates
            raise ValueError(f"features must have names that UTF-8 can encode, not {name!r}")
        if not isinstance(feature, tfrecord.Feature):
            raise TypeError(
                f"features[{name!r}] must be a FixedLenFeature or VarLenFeature of "
                f"nvidia.dali.tfrecord, not {feature!r}"
            )


def _feature(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Feature:
    if dtype == np.uint8:  # a string
        return Feature(dtype)
    fixed = shape[:1] != (0,)  # a FixedLenFeature of (0, ...) would be empty in all records
    return Feature(dtype, shape if fixed else shape[1:], fixed)


def _run(features: Mapping[str, Any], entries: bytes) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """The types and shapes of the outputs of DALI's reader for an Example of `entries`."""
    message = _message(example.MESSAGE, entries)
    record = HEADER.pack(len(message), 0) + message + FOOTER.pack(0)
    with in_memory(record) as path, in_memory(b"0 %d" % len(record)) as index_path:
        pipeline = Pipeline(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
        with pipeline:
            nodes = _TFRecord(path, index_path, dict(features), dont_use_mmap=True)()
            pipeline.set_outputs(*nodes.values())
        arrays = [np.asarray(output[0]) for output in pipeline.run()]
        return {name: (it.dtype, it.shape) for name, it in zip(nodes, arrays, strict=True)}


def _entry(name: str, kind: int) -> bytes:
    """A feature without values or, for a string, with one value."""
    values = _message(example.MESSAGE, b"") if kind == example.BYTES else b""
    key = _message(example.MESSAGE, name.encode())
    feature = _message(example.VALUE, _message(kind, values))
    return _message(example.MESSAGE, key + feature)


def _message(tag: int, content: bytes) -> bytes:
    size = len(content)  # in five bytes; all but the last have the continuation bit
    return (
        bytes([tag, *(size >> bits & 127 | 128 for bits in (0, 7, 14, 21)), size >> 28]) + content
    )
