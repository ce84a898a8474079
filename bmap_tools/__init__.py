"""Extent maps: where on a block device the bytes of many files are. See docs/bmap.md."""

from .extent_map import Device, ExtentMap, FileSystem, MapFormatError, load, save

__all__ = ["Device", "ExtentMap", "FileSystem", "MapFormatError", "load", "save"]
