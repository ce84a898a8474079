"""Trees of files."""

from collections.abc import Callable
from pathlib import Path

Tree = Callable[..., Path]
"""The fixture `tree`: makes files in class directories."""
