"""`readers.sequence`: sequences of frames in files."""

from dataclasses import replace
from typing import Any, Unpack

from ..dali import compat  # noqa: F401  # first: without DALI, it says how to install DALI

# isort: split
from nvidia.dali import fn, types

from ..contract._types import PathLike
from ..contract.options import dali_integer
from ..formats.pieces import BYTES, Pieces
from ..samples import frames
from ..samples.locations import location
from .arguments import DaliArguments, DataNode, Nodes, Prepared, makes_reader, prepare
from .containers import one_or_all
from .plugs import Common

_TYPES = types.RGB, types.BGR, types.GRAY, types.YCbCr
"""With ANY_DATA, DALI's decoder crashes at a greyscale JPEG."""


@makes_reader()
def sequence(
    *,
    file_root: PathLike,
    sequence_length: int,
    step: int = 1,
    stride: int = 1,
    image_type: Any = types.RGB,
    **given: Unpack[DaliArguments],
) -> Prepared[DataNode | tuple[DataNode, ...]]:
    """`fn.readers.sequence` with a choice of storage backend.

    The arguments are the same, and so are the order, shards, epochs, and frames of 8 bits, bit for
    bit. The parts are our reader, `fn.decoders.image` and `fn.stack`, so this also works with a
    DALI without its own reader. For all other arguments see `readers.file`.

    Args:
        file_root: a directory, or a URL of objects. Each directory inside is a stream; its frames
            are its images, sorted by their names as bytes: `10.png` is before `2.png`. The name of
            a directory is literal, whereas in DALI `*`, `?` and `[` are patterns.
        sequence_length: number of frames in a sequence, from 1 to 999, the maximum of `fn.stack`.
            Each frame is an input of the pipeline, so long sequences cost more than in DALI.
        step: distance between the starts of sequences, in frames; at least 1.
        stride: distance between frames of a sequence, at least 1.
        image_type: type of the frames: RGB, BGR, GRAY, or YCbCr, which DALI refuses; not ANY_DATA.
        device: the device that decodes frames. "cpu" or None, or "mixed", which DALI's reader does
            not have: sequences are then in GPU memory.

    Returns:
        The node of the sequences: uint8, FHWC. With return_index a tuple of this node and the
        index: int64, shape (1,).

    Raises:
        ValueError, TypeError, OSError, BackendUnavailable, RuntimeError: as `readers.file`; and if
            no directory has enough frames for a sequence.

    The running pipeline raises the errors of `readers.file`; and DALI's RuntimeError for a frame
    that cannot be decoded, or frames of several sizes in one sequence.
    """
    common = Common(**given)
    device = common.device or "cpu"
    if device not in ("cpu", "mixed"):
        raise ValueError(f"device must be 'cpu' or 'mixed', not {device!r}")
    if image_type not in _TYPES:
        raise ValueError(f"image_type must be RGB, BGR, GRAY or YCbCr, not {image_type!s:.80}")
    root = location("file_root", file_root)
    length = _count("sequence_length", sequence_length, 999)  # the most inputs of fn.stack
    step, stride = _count("step", step), _count("stride", stride)

    def stacked(nodes: Nodes) -> DataNode | Nodes:
        images = [
            fn.decoders.image(it, output_type=image_type, device=device) for it in nodes[:length]
        ]
        if length == 1:
            made = fn.expand_dims(images[0], axes=0, new_axis_names="F")
        else:
            made = fn.stack(*images, axis=0, axis_name="F")
        return one_or_all((made, *nodes[length:]))

    return prepare(
        replace(common, device="cpu"),
        lambda tree, remote: frames.find(root, length, step, stride, remote),
        Pieces("sequence", "Sequence", [BYTES] * length),
        names=[root],
    ).returning(stacked, decodes=True)


def _count(name: str, value: Any, most: int = 2**31 - 1) -> int:
    number = dali_integer(name, value, bits=32)
    if not 1 <= number <= most:
        raise ValueError(f"{name} must be from 1 to {most}, not {number}")
    return number
