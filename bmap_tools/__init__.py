"""Extent maps: the locations of many files' bytes on a block device. See docs/bmap.md."""

from .bmap_json import MapFormatError
from .extent_map import Device, ExtentMap, FileSystem
from .format import load, save

__all__ = ["Device", "ExtentMap", "FileSystem", "MapFormatError", "load", "save"]
