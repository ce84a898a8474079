"""`readers.nemo_asr`: speech named in manifests of NeMo."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import isfinite
from typing import Any, Unpack

import numpy as np

from ..dali import compat  # noqa: F401  # first: without DALI, it says how to install DALI

# isort: split
from nvidia.dali import fn, types
from nvidia.dali import math as dali_math

from ..contract._types import PathLike
from ..contract.catalog import Catalog
from ..contract.options import dali_flag, dali_number
from ..contract.remote import Remote
from ..formats.files import Files
from ..formats.manifest import lines
from ..formats.manifest.segments import Segments
from ..samples.locations import file_names
from .arguments import DaliArguments, DataNode, Nodes, Prepared, makes_reader, pick, prepare
from .containers import on_cpu, one_or_all
from .plugs import Common

_PATH = "audio_filepath"


class NemoArguments(DaliArguments, total=False):
    """The arguments of `nemo_asr`."""

    downmix: bool | None
    dtype: Any
    max_duration: float | None
    min_duration: float | None
    quality: float | None
    read_idxs: bool | None
    read_sample_rate: bool | None
    read_text: bool | None
    sample_rate: float | None


@dataclass(frozen=True, kw_only=True)
class _Speech:
    """The arguments of this reader alone, checked; None is the default."""

    downmix: bool = True
    dtype: Any = types.FLOAT
    max_duration: float = 0.0
    min_duration: float = 0.0
    quality: float = 50.0
    read_idxs: bool = False
    read_sample_rate: bool = True
    read_text: bool = True
    sample_rate: float = -1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value, default = getattr(self, field.name), field.default
            if value is None:
                value = default
            elif isinstance(default, bool):
                value = dali_flag(field.name, value)
            elif isinstance(default, float):
                value = _float32(field.name, value)
            object.__setattr__(self, field.name, value)
        if self.dtype not in (types.FLOAT, types.INT16, types.INT32):
            known = "FLOAT, INT16 or INT32 of nvidia.dali.types"
            raise ValueError(f"dtype must be {known}, not {self.dtype!r}")
        if not 0 <= self.quality <= 100:
            raise ValueError(f"quality must be from 0 to 100, not {self.quality}")


def _float32(name: str, given: Any) -> float:
    with np.errstate(over="ignore"):
        value = float(np.float32(dali_number(name, given)))  # as in DALI
    if not isfinite(value):
        raise ValueError(f"{name} must be a finite float32, not {given}")
    return value


@makes_reader(_Speech)
def nemo_asr(
    *,
    manifest_filepaths: PathLike | Sequence[PathLike],
    **given: Unpack[NemoArguments],
) -> Prepared[DataNode | tuple[DataNode, ...]]:
    """`fn.readers.nemo_asr` with a choice of storage backend.

    The arguments are the same, and so are audio, rate, text, index, order, shards and epochs, bit
    for bit. For all other arguments see `readers.file`, and for manifests `readers.manifest`. The
    keys of a line are "audio_filepath", "offset", "duration" and "text".

    Several operators replace DALI's single one: a reader, `fn.decoders.audio` and, for files other
    than plain WAV, `fn.slice` and `fn.audio_resample`. Such a file is read and decoded whole for
    each part.

    As in DALI, lines without "{" at the beginning or without a path are skipped, with a
    `ManifestLinesSkipped` warning. Other lines that are not JSON objects, and values of wrong
    types, are refused; DALI loses samples or crashes.

    Args:
        manifest_filepaths: paths or URLs of manifests. Paths in them are relative to the working
            directory.
        downmix: mix the channels to one: audio is then 1-D, otherwise (frames, channels).
        dtype: type of the audio: FLOAT, INT16 or INT32 of `nvidia.dali.types`.
        max_duration, min_duration: leave out samples with a longer or shorter duration in the
            manifest, in seconds; 0 for no limit. A missing duration is shorter than any.
        quality: quality of resampling, from 0 to 100.
        read_idxs: return the index.
        read_sample_rate: return the rate.
        read_text: return the text.
        sample_rate: the rate to resample to, in Hz; 0 or less: none.
        device: "cpu" or None.
        pinned: by default False, because audio is decoded on the CPU.

    Returns:
        The audio; or, if there are more outputs, a tuple `(audio, rate, text, idx, index)`.

        * audio: the samples, of `dtype`.
        * rate: float32, shape (): the rate of the file, in Hz, also if the audio is resampled.
        * text: uint8, 1-D: UTF-8 without a NUL at its end; empty if the line has no text.
        * idx: int64, shape (1,): the number of the sample in its manifest, without samples left
          out.
        * index: with return_index, int64, shape (1,): the number of the sample in all manifests.

    Raises:
        ValueError, TypeError, OSError, BackendUnavailable: as `readers.manifest`.

    The running pipeline raises the errors of `readers.file`, and:

        * ContainerChangedError: as `readers.manifest`.
        * RuntimeError, by DALI and without a name: a file cannot be decoded; or a segment of a file
          other than plain WAV begins behind the end.
    """
    own, common = pick(_Speech, given), pick(Common, given)
    on_cpu(common.device, "sound is decoded on the CPU")
    paths = file_names("manifest_filepaths", manifest_filepaths)
    limits = own.min_duration, own.max_duration
    columns: dict[str, lines.Kind] = {"text": str} if own.read_text else {}
    # The decoder returns the rate of its output.
    rates = own.read_sample_rate and own.sample_rate > 0
    fmt = Segments([*columns.values()], "nemo_asr", rates=rates, decoded=True)

    def find(tree: Any, remote: Remote | None) -> Catalog:
        files = Files(remote)
        found = lines.read(paths, _PATH, columns, dali=limits, files=files)
        return fmt.find(found, files)

    return prepare(
        replace(common, pinned=common.pinned or False),
        find,
        fmt,
        names=[*lines.first_path(paths[0], _PATH), *paths],
    ).returning(partial(_decoded, own), decodes=True)


def _decoded(own: _Speech, nodes: Nodes) -> DataNode | Nodes:
    """The outputs, decoded by operators of DALI."""
    dtype, mono, quality, target = own.dtype, own.downmix, own.quality, own.sample_rate
    data, is_later, span, rate, idx, *more = nodes

    def decoded(data: DataNode, **options: Any) -> Any:
        return fn.decoders.audio(data, **{"dtype": dtype, "downmix": mono, **options})

    def plain(data: DataNode, _: DataNode, rate: DataNode) -> Sequence[DataNode]:
        if target <= 0:
            return tuple(decoded(data))
        return decoded(data, quality=quality, sample_rate=target)[0], rate

    def cut(data: DataNode, audio: DataNode, span: DataNode, rate: DataNode) -> list[DataNode]:
        frames = fn.cast(dali_math.floor(span * rate), dtype=types.INT64)
        left = audio.shape(dtype=types.INT64)[0] - frames[0]
        return [fn.slice(audio, frames[0], dali_math.min(frames[1], left), axes=[0])]

    def resampled(data: DataNode, audio: DataNode, *about: DataNode) -> list[DataNode]:
        audio = audio if dtype == types.FLOAT else decoded(data, dtype=types.FLOAT)[0]
        options = {"in_rate": about[1], "out_rate": target, "quality": quality, "dtype": dtype}
        return [fn.audio_resample(*cut(data, audio, *about), **options)]

    def cut_later(data: DataNode, span: DataNode, _: DataNode) -> Sequence[DataNode]:
        audio, rate = decoded(data)
        found = [data, audio, span, rate]
        # Not resampled if the rates are equal: resampling would change the sound a little.
        return *(
            _either(rate != target, found, resampled, cut) if target > 0 else cut(*found)
        ), rate

    audio, rate = _either(is_later, [data, span, rate], cut_later, plain)
    chosen = [rate] if own.read_sample_rate else []
    chosen += [more.pop(0)] if own.read_text else []
    chosen += [idx] if own.read_idxs else []
    return one_or_all((audio, *chosen, *more))


def _either(
    predicate: DataNode, inputs: Sequence[DataNode], *branches: Callable[..., Sequence[DataNode]]
) -> list[DataNode]:
    """DALI's `if` with these two branches, without `enable_conditionals`."""
    split, merge = fn._conditional.split, fn._conditional.merge
    parts = zip(*(split(each, predicate=predicate) for each in inputs), strict=True)
    made = [branch(*part) for branch, part in zip(branches, parts, strict=True)]
    return [merge(*both, predicate=predicate) for both in zip(*made, strict=True)]
