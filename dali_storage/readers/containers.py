"""Arguments that several readers have beside those of `arguments`."""

from collections.abc import Mapping
from typing import Any

from .. import registry
from ..discovery import file_names
from ..options import dali_flag


def on_cpu(device: str | None, why: str) -> None:
    """Refuse a device that is not the CPU, of a reader that delivers nowhere else.

    Raises:
        ValueError: it is another.
    """
    if device not in (None, "cpu"):
        remedy = "take pinned=True, and .gpu() of an output"
        raise ValueError(f"device must be 'cpu', not {device!r}: {why}; {remedy}")


def index_names(argument: str, given: Any, count: int) -> list[bytes] | None:
    """The paths of indexes, one for each of `count` containers; None if there are none.

    Raises:
        ValueError, TypeError: there are more or fewer, or one is not a path.
    """
    if given is None or (isinstance(given, (list, tuple)) and not given):  # as in DALI
        return None
    names = file_names(argument, given)
    if len(names) != count:
        what = f"{len(names)} indexes for {count} files"
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


def storage_options(arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """`backend_options`; with `use_o_direct`, with the option direct=True of the backend.

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
        registry.configure(arguments["backend"], options)
    except TypeError as error:
        what = "use_o_direct=True is backend_options={'direct': True}, and"
        raise TypeError(f"{what} {error}; leave out use_o_direct, or take python-file") from None
    return options
