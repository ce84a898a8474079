"""The command torchrun, for tests; if possible in a network namespace of its own."""

import os

from tests.kit import namespace

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
LOCAL = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    # Otherwise the agent has a server of its own for the processes, in which torch 2.13 finds the
    # addresses of those before a restart.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


def torchrun(processes: int, module: str, *arguments: object) -> None:
    """Run a module in several processes, and all again if one of them dies; it must succeed."""
    options = f"--standalone --local-addr 127.0.0.1 --max-restarts 1 --nproc-per-node {processes}"
    words = ["-m", "torch.distributed.run", *options.split(), "-m", module, *arguments]
    env = {name: os.environ[name] for name in os.environ if name not in LAUNCHER} | LOCAL
    done = namespace.run(namespace.NETWORK, *words, required=False, env=env, capture_output=True)
    assert done.returncode == 0, done.stderr
