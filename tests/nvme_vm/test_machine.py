"""The machine itself."""

import sys
from pathlib import Path

import pytest

from tests.nvme_vm.disks import disk
from tests.nvme_vm.guests import TIMEOUT
from tests.nvme_vm.machine import Machine, MachineError


def test_a_command_hands_back_its_status_and_its_output(tmp_path):
    script = "echo to the host; echo error >&2; echo kept > $NVME_VM/file; > /etc/forgotten; exit 7"
    done = Machine(directory=tmp_path).run(["sh", "-c", script], TIMEOUT)
    assert (done.returncode, done.output) == (7, "to the host\nerror\n")
    assert (tmp_path / "file").read_text() == "kept\n"
    assert not Path("/etc/forgotten").exists()


def test_its_processor_sorts_right(tmp_path):
    script = "import numpy as np; a = np.arange(40) * 7 % 40; print(a[np.argsort(a)].tolist())"
    done = Machine(directory=tmp_path).run([sys.executable, "-c", script], TIMEOUT)
    assert done.output == f"{[*range(40)]}\n"


def test_a_guest_that_hangs_is_killed_and_its_last_output_is_shown(tmp_path):
    script = "echo last words; echo on the console > /dev/console; > $NVME_VM/hung; sleep 600"
    with Machine(directory=tmp_path).boot(["sh", "-c", script]) as running:
        running.wait_for("hung")
        with pytest.raises(MachineError, match=r"(?s)within 0.5 s.*on the console.*last words"):
            running.wait(0.5)
    with pytest.raises(MachineError, match="ended before its command did"):
        running.wait(10)


def test_a_guest_that_dies_has_no_status(tmp_path):
    crash = "echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger"
    with pytest.raises(MachineError, match=r"(?s)ended before its command did.*sysrq_handle_crash"):
        Machine(directory=tmp_path).run(["sh", "-c", crash], TIMEOUT)


def test_a_machine_that_cannot_be_started_says_why(tmp_path):
    machine = Machine(directory=tmp_path, controllers=(disk("NONE", tmp_path / "none"),))
    with pytest.raises(MachineError, match=r"(?s)could not be started.*none.*No such file"):
        machine.run(["true"], TIMEOUT)
