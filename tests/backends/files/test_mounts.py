"""File systems that are mounted in a namespace of the test: in user space, and in layers."""

import pytest

from tests.kit import mounts, namespace


@pytest.mark.long
@pytest.mark.parametrize("kind", mounts.KINDS)
def test_the_samples_of_a_mount_are_those_of_dali(kind, tree, tmp_path):
    root = tree(40, sizes=(700, 0, 4096, 1, 9000))
    arguments = "-m", "tests.kit.mounts", kind, root, tmp_path
    done = namespace.run(namespace.MOUNT, *arguments, capture_output=True)
    if done.returncode == mounts.REFUSED:
        pytest.skip(f"no mount of {kind}: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
