"""A backend of somebody else that reads objects: whole ones of web servers, by urllib."""

import errno
import os
from dataclasses import replace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from dali_storage import Catalog, ObjectReplacedError, Reader
from dali_storage.testing import ObjectTests
from tests.kit.objects.client import Served


class WebReader(Reader):
    """Asks for each object by a connection of its own; at first for its size and ETag."""

    schemes = ("http",)

    def __init__(self, catalog: Catalog, *, lanes: int = 4) -> None:
        self.lanes = lanes
        self._catalog = catalog
        self._known = {}
        if catalog.sizes is not None and catalog.versions is not None:
            versions = map(bytes.decode, catalog.versions.tolist())
            self._known = dict(enumerate(zip(catalog.sizes.tolist(), versions, strict=True)))

    def sizes(self, samples, lane):
        for sample in samples.tolist():
            if sample not in self._known:
                with self._ask(sample, "HEAD") as answer:
                    found = int(answer.headers["Content-Length"]), answer.headers["ETag"]
                    self._known.setdefault(sample, found)
        return np.array([self._known[sample][0] for sample in samples.tolist()], np.int64)

    def read(self, batch, lane):
        memory = memoryview(batch.buffer)
        for sample, start in zip(batch.samples.tolist(), batch.offsets.tolist(), strict=True):
            with self._ask(sample, "GET") as answer:
                body = answer.read()
            if (len(body), answer.headers["ETag"]) != self._known[sample]:
                raise ObjectReplacedError(self._catalog.path(sample), "the object was replaced")
            memory[start : start + len(body)] = body

    def close(self):
        pass

    def _ask(self, sample, method):
        url = os.fsdecode(self._catalog.path(sample))
        try:
            return urlopen(Request(url, method=method), timeout=60)
        except HTTPError as error:
            error.close()
            number = errno.ENOENT if error.code == 404 else errno.EIO
            raise OSError(number, f"{error.code} {error.reason}", url) from None


@pytest.mark.long  # a connection for each sample; make test has ObjectTests of object-store
class TestWebReader(Served, ObjectTests):
    batches = 20

    def open(self, catalog):
        return WebReader(catalog)

    def published(self, catalog):
        return replace(catalog, root=f"{self.server.url}/data".encode())
