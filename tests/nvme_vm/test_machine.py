"""The machine itself."""

from pathlib import Path

from tests.nvme_vm.guests import TIMEOUT
from tests.nvme_vm.machine import Machine


def test_a_command_hands_back_its_status_and_its_output(tmp_path):
    script = "echo to the host; echo error >&2; echo kept > $NVME_VM/file; > /etc/forgotten; exit 7"
    done = Machine(directory=tmp_path).run(["sh", "-c", script], TIMEOUT)
    assert (done.returncode, done.stdout) == (7, "to the host\nerror\n")
    assert (tmp_path / "file").read_text() == "kept\n"
    assert not Path("/etc/forgotten").exists()
