"""What several readers share, in addition to `arguments`."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from ..contract.objects import scheme
from ..samples.locations import file_names
from ..samples.patterns import as_list
from .arguments import DaliArguments, DataNode, Nodes


class DirectArguments(DaliArguments, total=False):
    """The arguments of DALI's readers with direct I/O."""

    use_o_direct: bool | None


def on_cpu(device: str | None, why: str) -> None:
    """Refuse devices other than the CPU, for a reader that delivers only in host memory."""
    if device not in (None, "cpu"):
        remedy = "use pinned=True, and .gpu() on an output"
        raise ValueError(f"device must be 'cpu', not {device!r}: {why}; {remedy}")


def index_names(argument: str, given: Any, containers: Sequence[bytes]) -> list[bytes] | None:
    """The paths of indexes, one for each of the containers; None without indexes.

    Objects as containers must have indexes.
    """
    if given is None or (isinstance(given, (list, tuple)) and not given):  # as in DALI
        for name in filter(scheme, containers):
            what = f"{argument} must be given for {os.fsdecode(name)!r}"
            why = "without an index, finding the samples needs very many requests"
            remedy = "run python -m dali_storage index on a local copy, and give the path or URL"
            raise ValueError(f"{what}: {why}; {remedy} of its .idx file")
        return None
    names = file_names(argument, given)
    if len(names) != len(containers):
        what = f"{len(names)} for {len(containers)} files"
        raise ValueError(f"{argument} must have one index for each file, not {what}")
    return names


def texts(argument: str, given: Any) -> list[str]:
    """Return an argument of one string or several; it must not be empty."""
    found = as_list(argument, given, (str,))
    if wrong := [each for each in found if not isinstance(each, str)]:
        raise TypeError(f"{argument} must be strings, not {wrong[0]!r}")
    if not found:
        raise ValueError(f"{argument} must not be empty: give a name for each output")
    return found


def one_or_all(nodes: Nodes) -> DataNode | Nodes:
    """Return a single node, or all."""
    return nodes if len(nodes) > 1 else nodes[0]


def with_names(names: Iterable[str], nodes: Nodes) -> dict[str, DataNode] | tuple[Any, ...]:
    """Return a dict of the named nodes; with unnamed ones, a tuple of the dict and the others."""
    named = dict(zip(names, nodes, strict=False))
    more = nodes[len(named) :]
    return (named, *more) if more else named
