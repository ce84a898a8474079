"""The samples that fn.readers.file finds, which are the oracle, and those that we find."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvidia.dali import fn, pipeline_def

from dali_storage.contract.catalog import Catalog
from dali_storage.samples import finding

REFUSALS = ("No files found", "Incorrect format of the list file", "Wrong format of file_list")

Entries = list[tuple[bytes, int]]


@pipeline_def(num_threads=1, device_id=None, prefetch_queue_depth=1)
def dali_pipeline(arguments: dict[str, Any]) -> Any:
    # Without mmap, because an empty file cannot be mapped.
    files, labels = fn.readers.file(name="reader", dont_use_mmap=True, **arguments)
    return fn.get_property(files, key="source_info"), labels


def dali_epoch_size(**arguments: Any) -> int:
    pipeline = dali_pipeline(arguments, batch_size=1)
    pipeline.build()
    return int(pipeline.reader_meta("reader")["epoch_size"])


def dali_entries(**arguments: Any) -> Entries:
    samples = dali_epoch_size(**arguments)
    pipeline = dali_pipeline(arguments, batch_size=samples)
    pipeline.build()
    names, labels = pipeline.run()
    return [(np.asarray(names[i]).tobytes(), int(labels.at(i)[0])) for i in range(samples)]


def dali_entries_or_refusal(**arguments: Any) -> Entries | None:
    try:
        return dali_entries(**arguments)
    except (RuntimeError, UnicodeDecodeError) as error:
        # The message may quote a line that is not UTF-8.
        text = repr(error.object) if isinstance(error, UnicodeDecodeError) else str(error)
        if not any(refusal in text for refusal in REFUSALS):
            raise
        return None


def dali_error(**arguments: Any) -> str:
    with pytest.raises(RuntimeError) as caught:
        dali_entries(**arguments)
    return str(caught.value)


def entries(found: Catalog) -> Entries:
    return [(found.name(i), int(found.labels[i])) for i in range(len(found))]


def entries_or_refusal(**arguments: Any) -> Entries | None:
    try:
        return entries(finding.find(**arguments))
    except ValueError:
        return None


def write(*parts: bytes | str | Path, content: bytes = b"x") -> None:
    path = os.path.join(*map(os.fsencode, parts))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
