"""Examples that train with torchrun and Ray: a worker is killed, and then three go on for two."""

import json
import os
import re
from importlib.util import find_spec
from itertools import chain
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.kit import namespace
from tests.kit.launch import torchrun
from tests.kit.paths import ROOT
from tests.kit.watched import KILLED

CHECKPOINT = 4  # steps from one to the next in the examples
RESUMED = (KILLED - 1) // CHECKPOINT * CHECKPOINT  # the step of the last one before a worker dies
FIRST, LAST = 13, 20  # steps of two workers, and after that of three
LIMITS = {"OMP_NUM_THREADS": "1", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "1800"}
EPOCH, BATCH = 5, 24  # its steps, and the pictures of a step


@pytest.fixture(scope="module")
def data(pictures, tmp_path_factory):
    """Pictures that are known by their labels, as each is in a class of its own."""
    root = tmp_path_factory.mktemp("classes")
    for number, picture in enumerate(sorted(pictures.glob("train/*/*"))):
        folder = root / "train" / f"c{number:03}"
        folder.mkdir(parents=True)
        (folder / picture.name).symlink_to(picture)
    return root


@pytest.fixture(scope="module")
def by_torchrun(data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("restarts")
    (directory / "checkpoints" / "99").mkdir(parents=True)  # one that was being written
    example = ROOT / "examples" / "torchrun_resume.py", "--data", data
    example += "--checkpoints", "checkpoints"
    for workers, steps in ((2, FIRST), (3, LAST)):
        torchrun(workers, "tests.kit.watched", directory, *example, "--steps", steps)
    return directory


@pytest.fixture(scope="module")
def by_ray(data, tmp_path_factory):
    """After the example, the function of the documents runs."""
    if not find_spec("ray"):
        pytest.skip("no Ray: make test-distributed")
    directory = tmp_path_factory.mktemp("ray")
    page = (ROOT / "docs" / "scaling.md").read_text()
    (code,) = re.findall(r"^```python\n([^`]*ray\.train[^`]*)^```", page, re.MULTILINE)
    for there, here in (
        ("/data/train", f"{data}/train"),
        ("batch_size=64", "batch_size=8"),
        ("pass  # train", f"open('{directory}/shapes', 'a').write(f'{{*images.shape,}}\\n')"),
    ):
        assert there in code
        code = code.replace(there, here)
    (directory / "page.py").write_text(code)
    example = f"{ROOT}/examples/ray_train.py --data {data}/train"
    with TemporaryDirectory(prefix="ray-") as short:
        runs = [f"{example} --workers {n} --steps {end}" for n, end in ((2, FIRST), (3, LAST))]
        words = ["-m", "tests.kit.ray_cluster", directory, *runs, directory / "page.py"]
        env = os.environ | LIMITS | {"TMPDIR": short}
        done = namespace.run(namespace.NETWORK, *words, env=env, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.fixture(params=["by_torchrun", "by_ray"])
def results(request):
    """Where the workers have written what they were given."""
    return request.getfixturevalue(request.param)


def steps(results, workers, attempt):
    """The pictures of each step in all workers."""
    logs = sorted(results.glob(f"labels-{workers}-{attempt}-*.jsonl"))
    assert len(logs) == workers
    ranks = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
    return [[*chain(*together)] for together in zip(*ranks, strict=True)]


def test_a_killed_worker_goes_on_with_the_same_pictures(results):
    first, again = steps(results, 2, 0), steps(results, 2, 1)
    assert len(first) == KILLED
    assert len(again) == FIRST - RESUMED
    assert again[: KILLED - RESUMED] == first[RESUMED:]


def test_every_picture_is_given_once_an_epoch_by_all_workers(results):
    """What counts of a step is its last attempt; three workers go on within the third epoch."""
    counted = steps(results, 2, 0)[:RESUMED] + steps(results, 2, 1)
    counted = counted[: FIRST // CHECKPOINT * CHECKPOINT] + steps(results, 3, 0)
    assert [len(step) for step in counted] == [BATCH] * LAST
    for start in range(0, LAST, EPOCH):
        assert len({*chain(*counted[start : start + EPOCH])}) == EPOCH * BATCH


def test_the_checkpoints_of_ray_have_the_place_of_every_worker(by_ray):
    found = {}
    for path in by_ray.glob("run/checkpoint_*/training.pt"):
        step, world, _ = torch.load(path)
        found[step] = world
        for rank in range(world):
            loader = torch.load(path.parent / f"loader-{rank}.pt")
            place = loader["readers"]["Reader"]
            assert (loader["rank"], loader["world"]) == (rank, world)
            assert (place["epoch"], place["given"] // BATCH) == divmod(step, EPOCH)
    assert found == {4: 2, 8: 2, 12: 2, 16: 3, 20: 3}


def test_the_function_for_ray_on_the_page_is_trained_with(by_ray):
    shapes = (by_ray / "shapes").read_text().splitlines()
    assert shapes == ["(8, 3, 224, 224)"] * 16
