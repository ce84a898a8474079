"""The snippets of docs/object-store.md run, against a server here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline

from tests.docs.test_docs import snippets
from tests.kit.containers import write_numbered_tars
from tests.kit.objects.client import FaultServer
from tests.kit.pictures import make_pictures

pytestmark = pytest.mark.usefixtures("pipelines_end")


def test_the_pipeline_delivers_every_sample(server: FaultServer, tmp_path: Path) -> None:
    make_pictures(tmp_path / "train")
    server.serve("bucket", tmp_path)
    code, _ = snippets("docs/object-store.md", "python")
    for there, here in (
        ("device_id=0", "device_id=None"),
        ("batch_size=64", "batch_size=4"),
        ('device="mixed"', 'device="cpu"'),
        ("http://127.0.0.1:9000", server.url),
    ):
        assert there in code
        code = code.replace(there, here)
    names: dict[str, Any] = {}
    exec(code, names)
    pipeline = names["train"]()
    labels = [int(label) for _ in range(6) for label in pipeline.run()[1].as_array().ravel()]
    expected = [number for number, _ in enumerate(sorted((tmp_path / "train").iterdir()))]
    assert sorted(set(labels)) == expected
    assert pipeline.epoch_size("Reader") == len([*tmp_path.rglob("*.*")])


def test_the_containers_are_read(server: FaultServer, tmp_path: Path) -> None:
    tars, indexes = write_numbered_tars(tmp_path, [2] * 100)
    for number, (tar, index) in enumerate(zip(tars, indexes, strict=True)):
        server.put(f"bucket/shards/{number:05d}.tar", Path(tar).read_bytes())
        Path(index).rename(tmp_path / f"{number:05d}.idx")
    _, code = snippets("docs/object-store.md", "python")
    for there, here in (("/data/indexes", str(tmp_path)), ('["jpg", "cls"]', '["n", "n"]')):
        assert there in code
        code = code.replace(there, here)
    pipeline = Pipeline(200, num_threads=1, device_id=None)
    names: dict[str, Any] = {}
    with pipeline:
        exec(f"from dali_storage import readers\n{code}", names)
        pipeline.set_outputs(names["jpegs"])
    (samples,) = pipeline.run()
    numbers = [int(np.asarray(sample).view(np.int64)[0]) for sample in samples]
    assert sorted(numbers) == [*range(200)]
    assert numbers != sorted(numbers)
