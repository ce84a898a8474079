"""The run that this process belongs to, as far as its ranks know it without communication."""

import os
import secrets
import sys
from collections.abc import Mapping
from typing import Any

USER = "DALI_STORAGE_RUN"
_TORCH, _SLURM = "torch.distributed", "SLURM_JOB_ID"
_SET = "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE"  # by torchrun, by mpirun
_BEST = USER, _TORCH, _SET[0], _SLURM, _SET[1], "process"
_BEFORE = "resumed "


def run_of(world: int) -> dict[str, str]:
    """Return all that tells this run from others, by its source; empty if nothing does.

    The variable of the user, alone if set; a random number that torch's process group shares; the
    numbers of launchers; and, if there is one rank, a random number of this process.
    """
    if given := os.environ.get(USER):
        return {USER: given}
    found = {name: os.environ[name] for name in _SET if os.environ.get(name, "none") != "none"}
    # The tasks of an array may be ranks. A job that is put back into the queue keeps its number.
    if job := os.environ.get("SLURM_ARRAY_JOB_ID") or os.environ.get(_SLURM):
        found[_SLURM] = f"{job}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        try:
            store = distributed.distributed_c10d._get_default_store()
            number = store.compare_set("dali_storage/run", "", secrets.token_hex(8))
            found[_TORCH] = number.decode()
        except (AttributeError, RuntimeError, ValueError):
            pass  # the process with the store has ended, or this store cannot do so
    return found if found or world > 1 else {"process": _PROCESS}


def before(run: Mapping[str, str]) -> dict[str, str]:
    """Return what tells a run from others that goes on with a state of `run`.

    Apart from its own numbers: one rank may know these, and another may not, as without its group.
    """
    return {_BEFORE + it: run[it] for it in _BEST if it in run} or dict(run)


def different(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Say how two runs differ, by the best source that both have; "" if they may be one."""
    known = *_BEST, *(_BEFORE + it for it in _BEST)
    best = next((it for it in known if it in one and it in other), None)
    if best is None or one[best] == other[best]:
        return ""
    return f"{best} is {one[best]!r} and {other[best]!r}"


_PROCESS = secrets.token_hex(8)
