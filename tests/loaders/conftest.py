"""Small archives of CIFAR, and torch with one thread."""

import shutil

import pytest

from tests.kit.cifar_archive import ROWS, write_cifar10, write_cifar100


@pytest.fixture(scope="package")
def archive(tmp_path_factory):
    """Both forms of a small CIFAR-10 and CIFAR-100, read-only, and what is in CIFAR-10."""
    root = tmp_path_factory.mktemp("cifar")
    write_cifar100(root, rows=ROWS)
    return root, write_cifar10(root, rows=ROWS)


@pytest.fixture(scope="package")
def cifar(archive):
    """The directory of the archives, which no test changes."""
    return archive[0]


@pytest.fixture
def copy(cifar, tmp_path):
    """A copy of CIFAR-10 that a test may change."""
    return shutil.copytree(cifar, tmp_path / "root", ignore=shutil.ignore_patterns("cifar-100-*"))


@pytest.fixture
def one_thread():
    """So small networks are slower with several, and much slower on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
