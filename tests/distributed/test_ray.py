"""Ray Train itself, with a worker that is killed, and another number of workers."""

import json
import os
import re
from importlib.util import find_spec
from itertools import chain
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.kit import namespace
from tests.kit.paths import ROOT
from tests.kit.ray_cluster import KILLED

pytestmark = pytest.mark.skipif(not find_spec("ray"), reason="no Ray: make test-distributed")

CHECKPOINT = 4  # steps from one to the next in examples/ray_train.py
RESUMED = (KILLED - 1) // CHECKPOINT * CHECKPOINT  # the step of the last one before a worker dies
FIRST, LAST = 13, 20  # steps of two workers, and after that of three
LIMITS = {"OMP_NUM_THREADS": "1", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "1800"}
EPOCH, BATCH = 5, 24  # its steps, and the pictures of a step


@pytest.fixture(scope="module")
def data(pictures, tmp_path_factory):
    """Pictures that are known by their labels, as each is in a class of its own."""
    root = tmp_path_factory.mktemp("classes")
    for number, picture in enumerate(sorted(pictures.glob("train/*/*"))):
        (root / f"c{number:03}").mkdir()
        (root / f"c{number:03}" / picture.name).symlink_to(picture)
    return root


@pytest.fixture(scope="module")
def results(data, tmp_path_factory):
    """What the workers of the example, and then of the documents' function, have written."""
    directory = tmp_path_factory.mktemp("ray")
    page = (ROOT / "docs" / "scaling.md").read_text()
    (code,) = re.findall(r"^```python\n([^`]*ray\.train[^`]*)^```", page, re.MULTILINE)
    for there, here in (
        ("/data/train", str(data)),
        ("batch_size=64", 'batch_size=8, device="cpu"'),
        ("pass  # train", f"open('{directory}/shapes', 'a').write(f'{{*images.shape,}}\\n')"),
        ("num_workers=16, use_gpu=True", "num_workers=2"),
    ):
        assert there in code
        code = code.replace(there, here)
    (directory / "page.py").write_text(code)
    example = f"{ROOT}/examples/ray_train.py --data {data} --device cpu"
    with TemporaryDirectory(prefix="ray-") as short:
        done = namespace.run(
            namespace.NETWORK,
            *("-m", "tests.kit.ray_cluster", directory),
            f"{example} --workers 2 --steps {FIRST}",
            f"{example} --workers 3 --steps {LAST}",
            directory / "page.py",
            env=os.environ | LIMITS | {"TMPDIR": short},
            capture_output=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        yield directory


def steps(results, workers, attempt):
    """The pictures of each step in all workers."""
    logs = sorted(results.glob(f"labels-{workers}-{attempt}-*.jsonl"))
    assert len(logs) == workers
    ranks = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
    return [[*chain(*together)] for together in zip(*ranks, strict=True)]


def test_a_killed_worker_of_ray_goes_on_with_the_same_pictures(results):
    first, again = steps(results, 2, 0), steps(results, 2, 1)
    assert len(first) == KILLED
    assert len(again) == FIRST - RESUMED
    assert again[: KILLED - RESUMED] == first[RESUMED:]


def test_every_picture_is_given_once_an_epoch_by_all_workers_of_ray(results):
    """What counts of a step is its last attempt; three workers go on within the third epoch."""
    counted = steps(results, 2, 0)[:RESUMED] + steps(results, 2, 1)
    counted = counted[: FIRST // CHECKPOINT * CHECKPOINT] + steps(results, 3, 0)
    assert [len(step) for step in counted] == [BATCH] * LAST
    for start in range(0, LAST, EPOCH):
        assert len({*chain(*counted[start : start + EPOCH])}) == EPOCH * BATCH


def test_the_checkpoints_of_ray_have_the_place_of_every_worker(results):
    found = {}
    for path in results.glob("run/checkpoint_*/training.pt"):
        step, world, _ = torch.load(path)
        found[step] = world
        for rank in range(world):
            loader = torch.load(path.parent / f"loader-{rank}.pt")
            place = loader["readers"]["Reader"]
            assert (loader["rank"], loader["world"]) == (rank, world)
            assert (place["epoch"], place["given"] // BATCH) == divmod(step, EPOCH)
    assert found == {4: 2, 8: 2, 12: 2, 16: 3, 20: 3}


def test_the_function_for_ray_on_the_page_is_trained_with(results):
    shapes = (results / "shapes").read_text().splitlines()
    assert shapes == ["(8, 3, 224, 224)"] * 16
