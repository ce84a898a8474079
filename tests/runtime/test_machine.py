"""The processors and the memory for this process, with control groups as kernels show them."""

import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dali_storage.runtime import machine
from dali_storage.runtime.machine import cache_memory, quota

V2 = "35 24 0:29 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "33 31 0:30 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
OTHERS = (
    "22 1 0:21 / /proc rw,relatime - proc proc rw\n"
    "36 31 0:34 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
)
G = "sys/fs/cgroup"
CPU = f"{G}/cpu,cpuacct"


def v1(quota_us, period_us="100000", group=""):
    folder = f"{CPU}{group}"
    return {f"{folder}/cpu.cfs_quota_us": quota_us, f"{folder}/cpu.cfs_period_us": period_us}


@pytest.mark.parametrize(
    ("cgroup", "mounts", "files", "expected"),
    [
        ("0::/", V2, {f"{G}/cpu.max": "400000 100000\n"}, 4),
        ("0::/", V2, {f"{G}/cpu.max": "150000 100000\n"}, 2),  # rounded up
        ("0::/", V2, {f"{G}/cpu.max": "1000 100000\n"}, 1),
        ("0::/", V2, {f"{G}/cpu.max": "max 100000\n"}, math.inf),
        ("0::/", V2, {}, math.inf),  # the root of a host has no file
        ("0::/a/b/c", V2, {f"{G}/a/b/c/cpu.max": "max 1000", f"{G}/a/cpu.max": "3000 1000"}, 3),
        ("0::/a/b", V2, {f"{G}/a/b/cpu.max": "200000 50000", f"{G}/a/cpu.max": "9000 1000"}, 4),
        ("0::/a", V2, {f"{G}/b/cpu.max": "1 1"}, math.inf),  # of others
        ("0::/../..", V2, {f"{G}/cpu.max": "2 1"}, 2),
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


V1_MEMORY = f"34 31 0:31 / /{G}/memory rw - cgroup cgroup rw,memory\n"
STAT = "anon 300\ninactive_file 50\nactive_file 7\n"


def v1_memory(limit, used, group=""):
    files = {"limit_in_bytes": limit, "usage_in_bytes": used}
    stat = "inactive_file 1\nactive_file 1\n" + STAT.replace("in", "total_in").replace(
        "\nact", "\ntotal_act"
    )
    named = {f"{G}/memory{group}/memory.{name}": f"{value}\n" for name, value in files.items()}
    return named | {f"{G}/memory{group}/memory.stat": stat}


def v2_memory(group="", stat=STAT, **files):
    named = {f"{G}{group}/memory.{name}": f"{value}\n" for name, value in files.items()}
    return named | {f"{G}{group}/memory.stat": stat}


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/", {}, 1_024_000),
        ("0::/a", v2_memory("/a", max=900, current=400), 557),  # cached files can leave
        ("0::/a", v2_memory("/a", max="max", current=400), 1_024_000),
        ("0::/a", v2_memory("/a", max=900, high=700, current=400), 357),
        ("0::/a", v2_memory("/a", max=2_000_000, current=400), 1_024_000),
        ("0::/a", v2_memory("/a", max=100, current=400), 0),
        ("0::/a", v2_memory("/a", max=100, current=20), 100),
        ("0::/a/b/c", v2_memory("/a", max=900, current=400) | v2_memory("/a/b", max=950, current=1),
         557),
        ("0::/b", v2_memory("/a", max=900, current=400), 1_024_000),
        ("0::/a", v2_memory("/a", "no table", max=900, current=400), 500),
        ("0::/a", v2_memory("/a", max="x y", current="-"), 1_024_000),
        ("4:memory:/", v1_memory(900, 400), 557),
        ("4:memory:/", v1_memory(9223372036854771712, 400), 1_024_000),
        ("4:memory:/a", v1_memory(900, 400) | v1_memory(800, 1, "/a"), 557),
        ("4:cpu:/", v1_memory(900, 400), 1_024_000),
    ],
)  # fmt: skip
def test_the_page_cache_may_use_what_the_machine_and_all_groups_leave(
    tmp_path, cgroup, files, expected
):
    shown = {"proc/self/cgroup": f"{cgroup}\n", "proc/self/mountinfo": OTHERS + V2 + V1_MEMORY}
    shown |= {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 1000 kB\n"}
    assert cache_memory(write(tmp_path, files | shown)) == expected


@pytest.mark.parametrize("text", [None, "", "MemTotal: 9000 kB\n", "MemAvailable: many kB\n"])
def test_without_memavailable_the_memory_is_unknown(tmp_path, text):
    shown = {"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": V2}
    shown |= v2_memory("/a", max=900, current=400) | (
        {} if text is None else {"proc/meminfo": text}
    )
    assert cache_memory(write(tmp_path, shown)) is None


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


@pytest.mark.parametrize(
    ("name", "comm"),
    [
        ("dali_storage:Reader:0", "dali:Reader:0"),
        ("dali_storage:ImageNetTrain:12", "dali:ImageNe:12"),
        ("dali_storage:cache", "dali:cache"),
        ("dali_storage:get:network", "dali:ge:network"),
        ("dali_storage:Ünïcödé:1", None),
    ],
)
def test_the_kernel_knows_a_thread_by_its_name(name, comm):
    seen = []

    def look():
        machine.show_name()
        path = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
        seen.append(path.read_bytes().rstrip(b"\n"))

    thread = threading.Thread(target=look, name=name)
    thread.start()
    thread.join()
    if comm is None:  # a letter may be cut
        assert (seen[0][:5], seen[0][-2:], len(seen[0])) == (b"dali:", b":1", 15)
    else:
        assert seen == [comm.encode()]
