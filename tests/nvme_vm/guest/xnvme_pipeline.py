"""Pipelines that decode JPEGs out of raw NVMe reads, by the backend xnvme-block."""

from __future__ import annotations

from .. import plan
from . import ways
from .pipeline import require_images_of_readers_file


@ways.ALL
def test_images_and_labels_are_those_of_fn_readers_file(way: ways.Way) -> None:
    with way(plan.MAPPED) as uri:
        require_images_of_readers_file("xnvme-block", uri)
