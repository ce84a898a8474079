"""The arguments of `fn.readers.coco` about annotations."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ...contract.options import dali_flag, dali_number
from ...samples.patterns import PATH_TYPES, as_list, path_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CocoOptions:
    """The arguments of this name; `readers.coco` describes them."""

    images: tuple[bytes, ...] | None = None
    ratio: bool = False
    ltrb: bool = False
    skip_empty: bool = False
    size_threshold: float = 0.1
    include_iscrowd: bool = True
    avoid_class_remapping: bool = False
    polygon_masks: bool = False
    pixelwise_masks: bool = False
    image_ids: bool = False
    # The names of given options, even if a value is the default.
    explicit: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, arguments: Mapping[str, Any], given: Collection[str] = ()) -> CocoOptions:
        """Pick the options among arguments by name; None is not given, `given` are not defaults.

        Raises:
            ValueError, TypeError: an option is wrong; the message has its name and value.
        """
        found = {name: it for name in DEFAULTS if (it := arguments.get(name)) is not None}
        for name, value in found.items():
            if name == "images":
                names = tuple(path_bytes(name, each) for each in as_list(name, value, PATH_TYPES))
                try:
                    b"\n".join(names).decode()
                except UnicodeDecodeError:
                    what = f"{name} must be UTF-8, as DALI's parser requires"
                    raise ValueError(f"{what}, not {names!r:.60}; rename the files") from None
                found[name] = names or None
            elif name == "size_threshold":
                found[name] = dali_number(name, value)
            else:
                found[name] = dali_flag(name, value)
        if found.get("polygon_masks") and found.get("pixelwise_masks"):
            raise ValueError("polygon_masks and pixelwise_masks cannot both be given")
        explicit = frozenset(name for name in given if found.get(name) is not None)
        return cls(**found, explicit=explicit)

    def given(self) -> dict[str, Any]:
        """Return the options that were given or differ from the default, for JSON."""
        every = {name: getattr(self, name) for name in DEFAULTS}
        every["images"] = self.images and [*map(os.fsdecode, self.images)]
        given = {*self.explicit, *(name for name in every if every[name] != DEFAULTS[name])}
        return {name: it for name, it in every.items() if name in given}


DEFAULTS = {it.name: it.default for it in fields(CocoOptions) if it.compare}
"""The default of each option, by name."""
