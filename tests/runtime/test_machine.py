"""How many processors there are for this process, with control groups as kernels show them."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dali_storage.runtime import machine
from dali_storage.runtime.machine import quota

V2 = "35 24 0:29 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "33 31 0:30 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
OTHERS = (
    "22 1 0:21 / /proc rw,relatime - proc proc rw\n"
    "36 31 0:34 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
)
CPU = "sys/fs/cgroup/cpu,cpuacct"


def v1(quota_us, period_us="100000", group=""):
    folder = f"{CPU}{group}"
    return {f"{folder}/cpu.cfs_quota_us": quota_us, f"{folder}/cpu.cfs_period_us": period_us}


@pytest.mark.parametrize(
    ("cgroup", "mounts", "files", "expected"),
    [
        ("0::/", V2, {"sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4),
        ("0::/", V2, {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),  # rounded up
        ("0::/", V2, {"sys/fs/cgroup/cpu.max": "1000 100000\n"}, 1),
        ("0::/", V2, {"sys/fs/cgroup/cpu.max": "max 100000\n"}, math.inf),
        ("0::/", V2, {}, math.inf),  # the root of a host has no file
        (
            "0::/a/b/c",
            V2,
            {
                "sys/fs/cgroup/a/b/c/cpu.max": "max 100000",
                "sys/fs/cgroup/a/cpu.max": "300000 100000",
            },
            3,
        ),
        (
            "0::/a/b",
            V2,
            {"sys/fs/cgroup/a/b/cpu.max": "200000 50000", "sys/fs/cgroup/a/cpu.max": "9000 1000"},
            4,
        ),
        ("0::/a", V2, {"sys/fs/cgroup/b/cpu.max": "1 1"}, math.inf),  # of others
        ("0::/../..", V2, {"sys/fs/cgroup/cpu.max": "2 1"}, 2),
        ("4:cpu,cpuacct:/", V1.format(root="/"), v1("250000"), 3),
        ("4:cpu,cpuacct:/", V1.format(root="/"), v1("-1"), math.inf),
        ("4:cpu,cpuacct:/a/b", V1.format(root="/"), v1("-1", group="/a/b") | v1("1", "1"), 1),
        ("4:cpu,cpuacct:/docker/1", V1.format(root="/docker/1"), v1("200000"), 2),
        ("4:cpuacct:/\n3:cpuset:/", V1.format(root="/"), v1("100000"), math.inf),
        ("0::/\n4:cpu,cpuacct:/", V1.format(root="/") + V2, v1("200000"), 2),
    ],
)
def test_the_smallest_quota_of_the_groups_counts(tmp_path, cgroup, mounts, files, expected):
    shown = {"proc/self/cgroup": f"9:name=systemd:/\n{cgroup}\n"}
    write(tmp_path, files | shown | {"proc/self/mountinfo": OTHERS + mounts})
    assert quota(tmp_path) == expected


@pytest.mark.parametrize(
    "text", ["", "\n", "0", "0 0", "5 0", "-5 -5", "1 2 3", "a b", "9" * 400 + " 1", "9" * 5000]
)
def test_garbage_sets_no_quota(tmp_path, text):
    mounts = {"proc/self/mountinfo": OTHERS + V2 + V1.format(root="/")}
    group = {"proc/self/cgroup": "0::/\n4:cpu,cpuacct:/\n"}
    quotas = v1(text, text) | {"sys/fs/cgroup/cpu.max": text}
    for number, files in enumerate([mounts | group | quotas, mounts | {"proc/self/cgroup": text}]):
        assert quota(write(tmp_path / f"{number}", files)) == math.inf
    files = group | quotas | {"proc/self/mountinfo": text}
    assert quota(write(tmp_path / "mountinfo", files)) == math.inf
    assert quota(tmp_path / "nothing") == math.inf


@pytest.mark.parametrize(("limit", "expected"), [(math.inf, 3), (8, 3), (3, 3), (2, 2), (1, 1)])
def test_the_smaller_of_affinity_and_quota_counts(monkeypatch, limit, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {2, 4, 5})
    monkeypatch.setattr(machine, "quota", lambda: limit)
    assert machine.processors() == expected


@pytest.fixture
def limited():
    """A real control group with the quota of half a processor."""
    half, reasons = {"cpu.max": "50000 100000"}, []
    half_v1 = {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}
    for root, files in [("", half), ("cpu", half_v1), ("cpu,cpuacct", half_v1)]:
        group = Path("/sys/fs/cgroup", root, f"dali_storage-{os.getpid()}")
        if not (group.parent / "cgroup.procs").exists():
            continue
        try:
            group.mkdir()
            for name, text in files.items():
                with open(group / name, "r+") as file:  # made by the kernel, or not there
                    file.write(text)
        except OSError as error:
            reasons.append(str(error))
        else:
            yield group
            return
        finally:
            if group.exists():
                group.rmdir()
    pytest.skip(f"no control group with a CPU quota can be made here: {reasons}")


def test_the_quota_of_a_real_control_group_counts(limited):
    script = (
        "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()));"
        "from dali_storage.runtime.machine import processors; print(processors())"
    )
    command = [sys.executable, "-c", script, limited / "cgroup.procs"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
