"""`readers.npz`: arrays in .npz files."""

from collections.abc import Sequence
from typing import Unpack

from ..contract._types import PathLike
from ..contract.options import dali_flag
from ..formats.files import Files
from ..formats.npy import archive, header
from ..samples.finding import locations
from ..samples.locations import file_names
from .arguments import DataNode, Prepared, makes_reader, prepare
from .containers import DirectArguments, on_cpu, one_or_all, texts
from .plugs import Common


@makes_reader(samples=["file_root", "files", "file_list", "file_filter"])
def npz(
    *,
    members: str | Sequence[str],
    file_root: PathLike | None = None,
    files: PathLike | Sequence[PathLike] | None = None,
    file_list: PathLike | None = None,
    file_filter: PathLike | None = "*.npz",
    verify: bool = False,
    **given: Unpack[DirectArguments],
) -> Prepared[DataNode | tuple[DataNode, ...]]:
    """Arrays in files of numpy.savez(), in the order of `readers.file`. DALI has no such reader.

    A file is a sample. Only the chosen arrays are read. Arrays of numpy.savez_compressed() are
    refused, because they are not byte ranges of their files. `readers.numpy` describes `file_root`,
    `files`, `file_list` and `file_filter`, and `readers.file` the arguments not listed here.
    Regions are not arguments: use `fn.slice` on an output.

    Args:
        members: for each output the name of its array, as in numpy.load(): "x" is the member x.npy.
        device: "cpu" or None. For a GPU use `pinned`, and `.gpu()` on the outputs.
        use_o_direct: the same as `backend_options={"direct": True}`.
        verify: compare the CRC-32 of each array and its header, as numpy.load() does.

    Returns:
        A single node for a single member, otherwise a tuple of the nodes; with return_index the
        last is the index, int64, shape (1,). The arrays are those of `readers.numpy`, equal to
        numpy.load(). With `direct`, all arrays are copied unless their elements have one byte: they
        seldom lie in the file at multiples of their element size.

    Raises:
        ValueError, TypeError, OSError, BackendUnavailable, RuntimeError: as `readers.numpy`; and if
            a file is damaged, truncated or not a zip, lacks a member, or a member is compressed or
            encrypted. The message has the file and the remedy.

    The running pipeline raises the errors of `readers.file`, and:

        * RecordError: as `readers.numpy`; or with `verify` for a wrong CRC-32.
        * ContainerChangedError: a file has changed since its directory was read.
    """
    common = Common(**given)
    on_cpu(common.device, "headers are parsed on the CPU")
    outputs = texts("members", members)
    names = None if files is None else file_names("files", files)
    pattern = "*.npz" if file_filter is None else file_filter
    checked = dali_flag("verify", verify)

    return prepare(
        common,
        lambda tree, remote: archive.find(
            header.find(file_root, file_list, names, pattern, remote),
            outputs,
            checked,
            Files(remote),
        ),
        archive.Npz(outputs),
        names=locations(file_root, names, file_list),
    ).returning(one_or_all)
