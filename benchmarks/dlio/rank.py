"""A process of DLIO: alone, or a rank of mpirun. The settings are JSON, in the command line."""

import contextlib
import json
import os
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

_EPOCHS = 20  # at most: two without computation, and those of the bisection


class _Enough(Exception):  # noqa: N818  (no error)
    """Nothing is left to measure."""


def main(given: dict[str, Any]) -> None:
    """Run DLIO, and write what this rank has seen."""
    # DLIO 2.0.0 imports TensorFlow for a profiler that is not used.
    unused: Any = types.ModuleType("dlio_benchmark.profiler.tf_profiler")
    unused.TFProfiler = None
    sys.modules[unused.__name__] = unused
    from dlio_benchmark.main import DLIOBenchmark
    from dlio_benchmark.utils.utility import DLIOMPI
    from hydra import compose, initialize_config_module
    from mpi4py import MPI

    DLIOMPI.get_instance().initialize()
    if given["names"]:
        _with_names_only(given["names"])
    words = [f"++workload.{key}={value}" for key, value in given["settings"].items()]
    with initialize_config_module("dlio_benchmark.configs", version_base=None):
        workload = compose("config", ["workload=default", *words])["workload"]
    from . import plugins

    plugins.take_out_the_debug_line()
    benchmark = DLIOBenchmark(workload)
    begun = time.time()
    benchmark.initialize()
    if benchmark.generate_only:
        return
    seen = _Watch(benchmark, given, plugins.LOOKED)
    with contextlib.suppress(_Enough):
        benchmark.run()
    report = {"epochs": seen.epochs, "pss": seen.pss, "processes": seen.processes, "begun": begun}
    Path(f"{given['out']}.{benchmark.my_rank}").write_text(json.dumps(report))
    benchmark.comm.barrier()
    # Not DLIO's own, which does nothing after a loader on torch without workers.
    MPI.Finalize()
    os._exit(0)  # workers of torch may still wait


def _with_names_only(names: int) -> None:
    """Have DLIO find so many names, of which few are files."""
    from dlio_benchmark.storage.file_storage import FileStorage

    listed = FileStorage.walk_node

    def walk_node(self: Any, folder: str, use_pattern: bool = False) -> list[str]:
        found: list[str] = listed(self, folder, use_pattern)
        width = len(str(names))
        return [f"img_{n:0{width}}_of_{names}.jpeg" for n in range(names)] if found else []

    FileStorage.walk_node = walk_node


class _Watch:
    """Makes the caches cold, sets the computation, and notes each epoch.

    An accelerator k times as fast computes a step in 1/k of the time. Epochs with k = 0, without
    computation, come first; then the largest k with an AU of at least 90 % is bisected.
    """

    def __init__(self, benchmark: Any, given: dict[str, Any], looked: Any) -> None:
        self.benchmark, self.given, self.looked = benchmark, given, looked
        self.epochs: list[dict[str, Any]] = []
        self.pss = self.processes = 0
        self._low, self._high = 0, 0
        self._times: list[float] = []
        self._train, benchmark._train = benchmark._train, self._epoch
        loaded = benchmark.stats.batch_loaded

        def note(*arguments: Any) -> None:
            loaded(*arguments)
            self._times.append(time.time())

        benchmark.stats.batch_loaded = note
        threading.Thread(target=self._weigh, daemon=True).start()

    def _next(self) -> int:
        """The k of the next epoch; -1: enough."""
        slow = bool(self.epochs) and self.epochs[0]["seconds"] > 20
        if len(self.epochs) < (1 if slow else self.given["free"]):
            return 0
        if not self.given["bisect"]:
            return -1
        if not self._high:
            rate = max(epoch["rate"] for epoch in self.epochs) / self.benchmark.comm_size
            step = self.given["seconds"] / self.benchmark.batch_size
            self._high = max(2, int(rate * step * 1.15) + 1)
        return (self._low + self._high) // 2 if self._high - self._low > 1 else -1

    def _epoch(self, epoch: int) -> Any:
        comm, me = self.benchmark.comm, self.benchmark.my_rank
        k = comm.bcast(self._next() if me == 0 else None)
        if k < 0:
            self._weigh_once()
            raise _Enough
        self.benchmark.computation_time = self.given["seconds"] / k if k else 0.0
        if me == 0:
            evict(self.given["data"])
        comm.barrier()
        self._times, before = [], self.looked.sum(0)
        begun, cpu, machine = time.time(), _cpu(), _machine()
        result = self._train(epoch)
        ended = time.time()
        rate = self.benchmark.batch_size * (len(self._times) - 1)
        rate /= max(self._times[-1] - self._times[0], 1e-9)
        au = next(iter(self.benchmark.stats.output[epoch]["au"].values()))
        noted: dict[str, Any] = {
            "k": k,
            "au": comm.allreduce(float(au)) / self.benchmark.comm_size,
            "rate": comm.allreduce(rate),
            "first": comm.allreduce(self._times[0] - begun) / self.benchmark.comm_size,
            "cpu": comm.allreduce(_cpu() - cpu),
            "machine": _machine() - machine,
            "looked": [int(each) for each in self.looked.sum(0) - before],
            "seconds": ended - begun,
            "at": self._times[0],
        }
        self.epochs.append(noted)
        if k and noted["au"] >= 90:
            self._low = k
        elif k:
            self._high = k
        return result

    def _weigh(self) -> None:
        while True:
            self._weigh_once()
            time.sleep(1)

    def _weigh_once(self) -> None:
        total = 0
        for process in (pids := _processes()):
            try:
                lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        self.pss, self.processes = max(self.pss, total * 1024), max(self.processes, len(pids))


def evict(data: str) -> None:
    """Drop the pages of the files from the page cache."""
    for path in Path(data).rglob("*.*"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _processes() -> list[int]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [os.getpid(), *map(int, children)]


def _cpu() -> float:
    """CPU seconds of this process and of its workers."""
    ticks = 0
    for process in _processes():
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _machine() -> float:
    """CPU seconds of the whole machine, without those of waiting."""
    values = [int(each) for each in Path("/proc/stat").read_text().split()[1:9]]
    return (sum(values) - values[3] - values[4]) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
