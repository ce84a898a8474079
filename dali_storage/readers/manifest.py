"""`readers.manifest`: files, or segments of WAV files, named in JSON lines."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from ..contract._types import PathLike
from ..contract.options import dali_flag
from ..formats.files import Files
from ..formats.manifest import lines
from ..formats.manifest.segments import Segments
from ..samples.locations import file_names, location
from .arguments import DataNode, Nodes, Prepared, ReaderArguments, makes_reader, prepare
from .containers import on_cpu, one_or_all
from .plugs import Common


@makes_reader()
def manifest(
    *,
    manifests: PathLike | Sequence[PathLike],
    path: str = "audio_filepath",
    columns: Mapping[str, lines.Kind] | None = None,
    segments: bool = True,
    return_rate: bool = False,
    file_root: PathLike | None = None,
    **given: Unpack[ReaderArguments],
) -> Prepared[DataNode | tuple[DataNode, ...]]:
    """Files named in manifests, and columns of the manifests, in the order of `readers.file`.

    A manifest has a JSON object on each line, for example
    `{"audio_filepath": "talk.wav", "offset": 61.5, "duration": 5, "text": "hello"}`. Blank lines
    are skipped. For all other arguments see `readers.file`.

    Args:
        manifests: paths or URLs of manifests, which are read one after another.
        path: the key of the path or URL of a sample's file, which may be of any kind.
        columns: the keys of further outputs, and their types: str, int or float, for example
            `{"text": str, "label": int}`. Every line must have them.
        segments: use the values of "offset" and "duration", in seconds, as a part of a WAV with
            PCM, float, A-law or mu-law; the part is delivered as a WAV of its own. Fractions of
            frames are truncated, and the part ends with the file. A missing or negative `offset` is
            0, and without a `duration` of at least 0 the part goes to the end. False: whole files.
        return_rate: return the sample rate from the header of such a WAV; other files are then
            refused.
        file_root: the directory or URL for relative paths; by default, as in DALI, the working
            directory, not the directory of the manifest.
        device: "cpu" or None; for a GPU use `pinned`, and `.gpu()` on an output.
        backend: by default object-store if file_root, a manifest, or the path in its first line is
            a URL.

    Returns:
        The data; or, if there are more outputs, a tuple `(data, rate, *columns, index)`.

        * data: uint8, 1-D: the bytes of the file, in host memory shared with DALI; or of a WAV.
        * rate: float32, shape (), in Hz.
        * columns: str is UTF-8, uint8, 1-D; int is int64 and float float64, of shape (1,).
        * index: with return_index, int64, shape (1,): the number of the sample.

    Raises:
        ValueError, TypeError: an argument is wrong; a line is not a JSON object, lacks a key or has
            a wrong value; or a segment begins behind the end of its file. The message has manifest
            and line.
        OSError: a manifest cannot be read; or, if any segment begins later than its file, a file.
        BackendUnavailable: as `readers.file`.

    The running pipeline raises the errors of `readers.file`, and:

        * RecordError: a segment is of a file that is not such a WAV, or begins behind its end.
        * ContainerChangedError: a file has changed since its size was read (sizes are read if any
          segment begins later than its file).
    """
    common = Common(**given)
    on_cpu(common.device, "headers are parsed on the CPU")
    paths = file_names("manifests", manifests)
    root = b"" if file_root is None else location("file_root", file_root)
    parts = dali_flag("segments", segments, default=True)
    if not isinstance(path, str):
        raise TypeError(f"path must be the key of a path, not {path!r}")
    kinds = columns or {}
    if not isinstance(kinds, Mapping):
        raise TypeError(f"columns must be keys and their types, not {kinds!r}")
    for name, kind in kinds.items():
        if not isinstance(name, str) or not any(kind is each for each in (str, int, float)):
            raise TypeError(f"columns must be keys and str, int or float, not {name!r}: {kind!r}")
    rates = dali_flag("return_rate", return_rate)
    fmt = Segments([*kinds.values()], "manifest", rates=rates)

    def find(tree: Any, remote: Any) -> Any:
        files = Files(remote)
        found = lines.read(paths, path, kinds, root=root, segments=parts, files=files)
        return fmt.find(found, files)

    def chosen(nodes: Nodes) -> DataNode | Nodes:
        data, _, _, rate, _, *more = nodes
        return one_or_all((data, *[rate] * rates, *more))

    names = [root] if root else lines.first_path(paths[0], path)
    return prepare(common, find, fmt, names=[*names, *paths]).returning(chosen)
