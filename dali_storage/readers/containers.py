"""Arguments that several readers have beside those of `arguments`."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..contract import registry
from ..contract.objects import scheme
from ..contract.options import dali_flag
from ..samples.locations import file_names


def on_cpu(device: str | None, why: str) -> None:
    """Refuse a device that is not the CPU, of a reader that delivers nowhere else.

    Raises:
        ValueError: it is another.
    """
    if device not in (None, "cpu"):
        remedy = "take pinned=True, and .gpu() of an output"
        raise ValueError(f"device must be 'cpu', not {device!r}: {why}; {remedy}")


def index_names(argument: str, given: Any, containers: Sequence[bytes]) -> list[bytes] | None:
    """The paths of indexes, one for each of the containers; None if there are none.

    Raises:
        ValueError, TypeError: there are more or fewer, one is not a path, or there are none and a
            container is an object.
    """
    if given is None or (isinstance(given, (list, tuple)) and not given):  # as in DALI
        for name in filter(scheme, containers):
            what = f"{argument} must be given for {os.fsdecode(name)!r}"
            why = "without an index, the header of each sample would be a request"
            remedy = "run python -m dali_storage index on a local copy, and give the path or URL"
            raise ValueError(f"{what}: {why}; {remedy} of the .idx file that it makes")
        return None
    names = file_names(argument, given)
    if len(names) != len(containers):
        what = f"{len(names)} indexes for {len(containers)} files"
        raise ValueError(f"{argument} must have one index for each file: {what}")
    return names


def goes_by_container(shuffle: str) -> bool:
    """Whether the order is that of DALI's readers of containers: the argument `shuffle`.

    Raises:
        ValueError: it is neither "dali" nor "samples".
    """
    if shuffle not in ("dali", "samples"):
        raise ValueError(f"shuffle must be 'dali' or 'samples', not {shuffle!r}")
    return shuffle == "dali"


def storage_options(
    arguments: Mapping[str, Any], names: Iterable[bytes] = ()
) -> Mapping[str, Any] | None:
    """`backend_options`; with `use_o_direct`, with the option direct=True of the backend.

    `names` are those of `prepare()`, which choose the backend.

    Raises:
        ValueError, TypeError: the options say direct=False, or the backend has no such option.
    """
    options: Mapping[str, Any] | None = arguments["backend_options"]
    if not dali_flag("use_o_direct", arguments["use_o_direct"]):
        return options
    if not (options or {}).get("direct", True):
        raise ValueError(
            "use_o_direct=True and backend_options={'direct': False} exclude each other"
        )
    options = {**(options or {}), "direct": True}
    try:
        registry.configure(registry.choose(arguments["backend"], names), options)
    except TypeError as error:
        what = "use_o_direct=True is backend_options={'direct': True}, and"
        raise TypeError(f"{what} {error}; leave out use_o_direct, or take python-file") from None
    return options
