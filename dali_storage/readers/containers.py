"""Arguments that several readers have beside those of `arguments`."""

from collections.abc import Mapping
from typing import Any

from .. import registry
from ..options import dali_flag


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
