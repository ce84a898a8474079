"""Small archives of CIFAR, readers that were closed, and torch with one thread."""

import shutil

import pytest

from tests.kit.cifar_archive import ROWS, write_cifar10, write_cifar100


@pytest.fixture(scope="package")
def cifar(tmp_path_factory):
    """Both forms of a small CIFAR-10 and CIFAR-100, which no test changes."""
    root = tmp_path_factory.mktemp("cifar")
    write_cifar100(root, rows=ROWS)
    write_cifar10(root, rows=ROWS)
    return root


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


@pytest.fixture
def closed(monkeypatch):
    """The readers that were closed."""
    from dali_storage.backends.memory import MemoryReader

    seen = []
    monkeypatch.setattr(MemoryReader, "close", lambda reader: seen.append(reader))
    return seen
