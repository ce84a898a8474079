"""The version of this package."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("dali-storage")
except PackageNotFoundError:
    VERSION = "unknown"  # of a checkout without installation
