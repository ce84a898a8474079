"""The examples: they are short, and they run; those that train learn, and go on where they were."""

import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.kit.cifar_archive import write_cifar10
from tests.kit.launch import LOCAL
from tests.kit.paths import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TRAINING = "--data {pictures} --epochs 3"
IGNITE = f"{{examples}}/ignite_train.py {TRAINING} --checkpoints checkpoints"
LIGHTNING = "{examples}/lightning_train.py --data {pictures} --checkpoints checkpoints"
LAST = "checkpoints/last.ckpt"
TORCHRUN = "-m torch.distributed.run --standalone --nproc-per-node 2"
SETS = "--imagenet {sets}/imagenet --cifar {sets}/cifar"
COMMANDS = {
    "ignite": [f"{IGNITE} --max-steps 6", f"{IGNITE} --resume checkpoints/checkpoint_6.pt"],
    "torchrun": [f"{TORCHRUN} {{examples}}/torchrun_train.py {TRAINING} --max-steps 2"],
    "lightning": [
        f"{LIGHTNING} --max-steps 10",
        f"{LIGHTNING} --max-steps 20 --devices 3 --resume {LAST}",
    ],
    "jax": ["{examples}/jax_train.py --data {pictures} --epochs 3 --max-steps 3"],
    "plot": ["{examples}/plot_mixture.py mixture.svg"],
    "segmentation": ["{examples}/segmentation.py"],
    "parquet": ["{examples}/parquet_train.py"],
    "mixture": ["{examples}/mixture.py"],
    "imagenet": ["{examples}/imagenet.py"],
    "cifar10": ["{examples}/cifar10.py"],
    "coco": ["{examples}/coco_ssd.py"],
    "dynamic": ["{examples}/dynamic_train.py --max-steps 6"],
    "side_by_side": [
        f"{{sets}}/side_by_side.py {it} --threads 1 --max-steps 1" for it in (SETS, "")
    ],
}
STEPS, VALIDATION = 4, 32  # of `pictures`: batches of 32 for training, samples for validation
CHANCE = 0.25


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Where the examples run, each in a directory of its name."""
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def sets(pictures, tmp_path_factory):
    """What side_by_side.py compares: ImageNet with four synsets, and a small CIFAR-10."""
    directory = tmp_path_factory.mktemp("sets")
    for number, folder in enumerate(sorted(pictures.glob("*/*"))):
        synset = directory / "imagenet" / folder.parent.name / f"n0000000{number % 4}"
        synset.parent.mkdir(parents=True, exist_ok=True)
        synset.symlink_to(folder)
    write_cifar10(directory / "cifar")
    (directory / "side_by_side.py").write_text(
        "import runpy, sys, torchvision.datasets.cifar as cifar\n"
        "cifar.check_integrity = lambda *_: True  # it knows the original by its MD5 sums\n"
        f"sys.path.insert(0, {str(ROOT / 'examples')!r})\n"
        f"runpy.run_path({str(ROOT / 'examples/side_by_side.py')!r}, run_name='__main__')\n"
    )
    return directory


@pytest.fixture(scope="module")
def printed(results, pictures, sets):
    """What the commands of an example print; two run at a time, as they import for seconds."""
    path = os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])

    def run(name):
        (results / name).mkdir()
        output = ""
        for command in COMMANDS[name]:
            line = command.format(examples=ROOT / "examples", pictures=pictures, sets=sets)
            words, env = [sys.executable, *shlex.split(line)], os.environ | LOCAL
            given = {"env": env | {"PYTHONPATH": path}, "cwd": results / name, "timeout": 600}
            done = subprocess.run(words, **given, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            output += done.stdout
        return output

    with ThreadPoolExecutor(2) as pool:
        runs = {name: pool.submit(run, name) for name in COMMANDS}
        yield lambda name: runs[name].result()
        pool.shutdown(cancel_futures=True)


def accuracies(text):
    """Of the epochs of an example, each of which prints the statistics of its loader, too."""
    return [float(a) for a in re.findall(r"accuracy (\d\.\d+); .* samples/s · waited ", text)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_to_run_it(path):
    text = path.read_text()
    assert len(text.splitlines()) <= (100 if path.stem == "make_pictures" else 68)
    assert f"\n* `{path.name}`" in (ROOT / "examples/README.md").read_text()


@pytest.mark.long
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_answers_help(path, tmp_path):
    needs = {"ray_train": "ray", "tensorflow_dataset": "tensorflow"}.get(path.stem, "os")
    pytest.importorskip(needs)
    command = [sys.executable, path, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert (done.returncode, [*tmp_path.iterdir()]) == (0, []), done.stderr
    assert done.stdout.startswith(f"usage: {path.name} [-h]")


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["imagenet", "cifar10", "coco", "dynamic", "mixture", "parquet", "segmentation"]
)
def test_an_example_runs_without_arguments_and_leaves_nothing(name, printed, results):
    assert printed(name)
    assert [*(results / name).iterdir()] == []


@pytest.mark.long
def test_ignite_learns_and_goes_on_where_it_stopped(printed, results):
    text = printed("ignite")
    assert re.findall(r"epoch (\d)", text) == ["1", "2", "3"]
    assert accuracies(text)[-1] > CHANCE
    last = torch.load(results / "ignite/checkpoints/checkpoint_12.pt", weights_only=True)
    assert last["trainer"]["iteration"] == 3 * STEPS


@pytest.mark.long
def test_lightning_trains_and_saves_its_last_step(printed, results):
    """On one process, and from step 10 on on three."""
    assert " samples/s · waited " in printed("lightning")
    last = torch.load(results / "lightning/checkpoints/last.ckpt", weights_only=True)
    assert (last["epoch"], last["global_step"]) == (20 // STEPS - 1, 20)


@pytest.mark.long
def test_torchrun_validates_every_picture_once_and_learns(printed):
    found = re.findall(r"(\d+) of (\d+) right; .* samples/s · waited ", printed("torchrun"))
    assert [int(samples) for _, samples in found] == [VALIDATION] * 3
    assert int(found[-1][0]) > CHANCE * VALIDATION


@pytest.mark.long
def test_dynamic_mode_learns(printed):
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d+)", printed("dynamic"))]
    assert len(losses) == 6
    assert losses[-1] < losses[0]


@pytest.mark.long
def test_the_plot_has_the_numbers_of_the_page(printed, results):
    ours, theirs = re.findall(r"at most (\S+)", printed("plot"))
    page = (ROOT / "docs/sampling.md").read_text()
    assert f"further than {ours} samples\nfrom its share" in page
    assert f"it is up to {theirs}." in page
    drawn = (results / "plot/mixture.svg").read_text()
    assert drawn.count("<text") > 10


@pytest.mark.long
def test_a_mixture_has_its_ratio_and_replaces_a_damaged_picture(printed):
    text = printed("mixture")
    assert re.findall(r": \[(\d+), (\d+)\]", text) == [("120", "40"), ("80", "80"), ("9", "8")]
    assert re.search(r"^replaced: \S+\.jpg, fn.decoders.image fails", text, re.M)


SAID = {
    "coco": r"the same pixels and targets: \(300, 300, 3\), \(8732, 4\), \(8732,\)",
    "jax": r"(?s)accuracy.*accuracy.*accuracy (0\.[3-9]|0\.2[6-9]|1\.)\d*; .* samples/s · waited ",
    "parquet": r"epoch 2: accuracy (0\.[4-9]|1\.)\d*; .* samples/s · waited ",
    "segmentation": r"(1\.0|0\.9[5-9])\d* of the pixels\n*$",
    "side_by_side": r"(?s)CIFAR-10: the same pixels.*ImageNet: the same pixels",
}


@pytest.mark.long
@pytest.mark.parametrize("example", SAID)
def test_an_example_learns_or_compares(example, printed):
    assert re.search(SAID[example], printed(example))
