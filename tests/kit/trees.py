"""Trees of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Tree = Callable[..., Path]
"""The fixture `tree`: makes files in class directories."""
