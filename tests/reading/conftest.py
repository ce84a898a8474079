from functools import partial

import pytest

from dali_storage.observing.meter import Meter
from dali_storage.order import OrderOptions
from dali_storage.readers.plugs import batch_memory
from dali_storage.reading.opening import Opening
from dali_storage.reading.source import BatchStream
from dali_storage.samples.discovery import from_files
from tests.kit.stand_ins import backend


class Opener:
    """Makes streams of ten samples in batches of 4, and knows the readers that they open."""

    def __init__(self) -> None:
        self.change = lambda reader: None
        self.device = "cpu"
        self.fails = False
        self.searches = 0
        self.readers = []

    @property
    def opened(self):
        return len(self.readers)

    @property
    def closed(self):
        return sum(reader.closed for reader in self.readers)

    def find(self, tree, remote):
        self.searches += 1
        if self.fails:
            raise FileNotFoundError(2, "gone", "root")
        return from_files([f"path/{sample}" for sample in range(10)], [0] * 5 + [1] * 5)

    def make(self, pinned=None, pipeline_seed=None, **order):
        opening = Opening(
            find=self.find,
            reader=backend(self._opened),
            device=self.device,
            order=OrderOptions(**order),
            observe=Meter,
            memory=partial(batch_memory, pinned=pinned),
        )
        source = BatchStream("R", opening)
        source.configure(batch_size=4, seed=pipeline_seed, checkpointing=False)
        return source

    def start(self, device_id=None, **options):
        source = self.make(**options)
        source.start(device_id=device_id)
        return source

    def _opened(self, reader):
        self.readers.append(reader)
        self.change(reader)


@pytest.fixture
def opener():
    return Opener()
