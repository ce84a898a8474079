"""The examples: they are short, and they run; those that train learn, and go on where they were."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .cifar_archive import write_cifar10

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CHANCE = 0.25
TRAIN, VALIDATION, STEPS = 128, 32, 4  # `pictures`, in batches of 32


def run(directory: Path, *command: str | Path) -> str:
    """What a Python program prints that runs in this directory; it must succeed."""
    done = subprocess.run(
        [sys.executable, *command], cwd=directory, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def example(name: str) -> Path:
    return ROOT / "examples" / f"{name}.py"


def accuracies(printed: str) -> list[float]:
    assert len(re.findall(r" samples/s · waited \d+% ", printed)) > 0
    return [float(found) for found in re.findall(r"accuracy (\d\.\d+)", printed)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 60
    if "parse_args" in text:
        assert f"examples/{path.name} " in text or f"-m examples.{path.stem} " in text


def test_ignite_goes_on_where_it_stopped(pictures: Path, tmp_path: Path) -> None:
    command = [example("ignite_train"), "--data", pictures, "--device", "cpu", "--epochs", "3"]
    run(tmp_path, *command, "--max-steps", "6")
    printed = run(tmp_path, *command, "--resume", "checkpoints/checkpoint_6.pt")
    assert re.findall(r"epoch (\d)", printed) == ["2", "3"]
    assert accuracies(printed)[-1] > CHANCE
    last = torch.load(tmp_path / "checkpoints/checkpoint_12.pt", weights_only=True)
    assert last["trainer"]["iteration"] == 3 * STEPS


def test_lightning(pictures: Path, tmp_path: Path) -> None:
    command = [example("lightning_train"), "--data", pictures, "--device", "cpu"]
    printed = run(tmp_path, *command, "--max-steps", "10")
    assert " samples/s · waited " in printed
    last = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)
    assert (last["epoch"], last["global_step"]) == (10 // STEPS, 10)


def test_torchrun_with_two_processes(pictures: Path, tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, example("torchrun_train"), "--data", pictures, "--device", "cpu"]
    printed = run(tmp_path, *command, "--epochs", "3", "--max-steps", "2")
    right = [(int(a), int(b)) for a, b in re.findall(r"(\d+) of (\d+) right", printed)]
    assert [samples for _, samples in right] == [VALIDATION] * 3
    assert right[-1][0] > CHANCE * VALIDATION


def test_jax(pictures: Path, tmp_path: Path) -> None:
    command = [example("jax_train"), "--data", pictures, "--device", "cpu"]
    printed = run(tmp_path, *command, "--epochs", "3", "--max-steps", "3")
    assert len(accuracies(printed)) == 3
    assert accuracies(printed)[-1] > CHANCE


def test_dynamic_mode(pictures: Path, tmp_path: Path) -> None:
    command = [example("dynamic_train"), "--data", pictures, "--device", "cpu"]
    printed = run(tmp_path, *command, "--max-steps", "6")
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d+)", printed)]
    assert len(losses) == 6
    assert losses[-1] < losses[0]


def test_side_by_side(pictures: Path, tmp_path: Path) -> None:
    imagenet, cifar = tmp_path / "imagenet", tmp_path / "cifar"
    for number, folder in enumerate(sorted(pictures.glob("*/*"))):
        synset = imagenet / folder.parent.name / f"n0000000{number % 4}"
        synset.parent.mkdir(parents=True, exist_ok=True)
        synset.symlink_to(folder)
    write_cifar10(cifar)
    # The archive is a small one of the tests; torchvision knows the MD5 sums of the original.
    program = (
        "import runpy, torchvision.datasets.cifar as cifar\n"
        "cifar.check_integrity = lambda *_: True\n"
        "runpy.run_module('examples.side_by_side', run_name='__main__')"
    )
    options = ["--device", "cpu", "--threads", "1", "--max-steps", "1"]
    printed = run(ROOT, "-c", program, "--imagenet", imagenet, "--cifar", cifar, *options)
    assert re.findall(r"(\S+): the same pixels", printed) == ["CIFAR-10", "ImageNet"]
