"""The default reader on NFS: the guest's kernel is the server and the client."""

from tests.nvme_vm.guests import guest_tests, run
from tests.nvme_vm.machine import Machine


def test_files_on_nfs_are_read_right_or_named(tmp_path):
    run(Machine(directory=tmp_path), guest_tests("nfs"))
