"""Processes of torchrun for tests: its own agent starts them, and again if one of them dies.

    python -m tests.kit.launch DIRECTORY "PROCESSES SCRIPT ARGUMENTS" ...

The scripts (modules, or files *.py) run one after the other. All is imported before the processes
are forked, which saves most of the time; and torch's stores are files in the directory, because its
servers listen on all addresses. tests/distributed runs the command `torchrun` itself.
"""

import functools
import os
import runpy
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from torch import distributed
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import dali_storage.loaders  # noqa: F401
from tests.kit import namespace
from tests.kit.paths import ROOT

ITSELF = False
"""Whether the command torchrun runs; its servers are then in a network namespace of their own."""

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
LOCAL = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    # Otherwise the agent has a server of its own for the processes, in which torch 2.13 finds the
    # addresses of those before a restart.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
# What scripts leave behind. With the last reference to a DistributedDataParallel, its process group
# may be destroyed by a thread that holds the interpreter, for which a thread of gloo may wait.
_KEPT: list[object] = []


def torchrun(directory: Path, *commands: str) -> str:
    """What the commands print, the errors last; they must succeed."""
    if ITSELF:
        return "".join(map(_torchrun_itself, commands))
    done = subprocess.run(
        [sys.executable, "-m", "tests.kit.launch", str(directory.resolve()), *commands],
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in os.environ if name not in LAUNCHER} | LOCAL


def _torchrun_itself(command: str) -> str:
    processes, script, *arguments = shlex.split(command)
    options = f"--standalone --local-addr 127.0.0.1 --max-restarts 1 --nproc-per-node {processes}"
    words = ["-m", "torch.distributed.run", *options.split(), *["-m"] * (script[-3:] != ".py")]
    run = functools.partial(namespace.run, namespace.NETWORK, *words, script, *arguments)
    done = run(env=_environment(), capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def work(directory: str, script: str, arguments: list[str]) -> None:
    """What a process does."""
    signal.alarm(180)  # it may be left alone
    place = [os.environ[name] for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")]
    distributed.init_process_group = functools.partial(
        distributed.init_process_group,
        init_method=f"file://{directory}/store-{'-'.join(place)}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    sys.argv = [script, *arguments]
    run = runpy.run_path if script.endswith(".py") else runpy.run_module
    _KEPT.append(run(script, run_name="__main__"))


def main(directory: str, *commands: str) -> None:
    for number, command in enumerate(commands):
        processes, script, *arguments = shlex.split(command)
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=int(processes),
            run_id=str(number),
            max_restarts=1,
            rdzv_backend="c10d",
            rdzv_endpoint=f"{directory}/rendezvous-{number}",
            rdzv_configs={"store_type": "file"},
            local_addr="127.0.0.1",
            start_method="fork",
        )
        elastic_launch(config, work)(directory, script, arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
