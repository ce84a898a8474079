"""The version of this package."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("dali-storage")
except PackageNotFoundError:
    __version__ = "unknown"  # of a checkout without installation
