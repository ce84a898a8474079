"""`python -m tests.kit.removed FAMILIES TESTS...`: pytest without the modules of families.

First it prints what a user is told who asks for what each of them brings; commas separate them.
"""

import re
import runpy
import sys

import pytest

import dali_storage
from dali_storage import readers
from dali_storage.contract import registry
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.contract.families import FAMILIES, family_of

ARGUMENTS = {
    "bad_samples": {"on_error": "replace"},
    "mixtures": {"order": [0]},
    "receipts": {"receipt": "samples"},
    "resuming": {"resume": {}},
}


class Remover:
    """A finder of modules that finds none of some families."""

    def __init__(self, families: list[str]) -> None:
        self._families = families

    def find_spec(self, name: str, *_: object) -> None:
        if family_of(name).name in self._families:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def ask(family: str) -> None:
    """Ask for what a family brings: a reader, a backend, an argument, a function or a command."""
    brings = FAMILIES[family].brings
    if name := re.match(r"readers\.(\w+)", brings):
        getattr(readers, name[1])
    if name := re.match(r"backend='(.+?)'", brings):
        registry.load(name[1])
    if family == "hub":
        readers.parquet(paths="hf://datasets/a/b/c")
    if family in ARGUMENTS:
        readers.file(file_root="/", pad_last_batch=True, **ARGUMENTS[family])
    if name := re.search(r"\b(report|patch)\b", brings):
        getattr(dali_storage, name[1])
    if name := re.match(r"python -m dali_storage ?(\w*)", brings):
        sys.argv[:] = ["python -m dali_storage", *filter(None, name.groups())]
        runpy.run_module("dali_storage", run_name="__main__")


if __name__ == "__main__":
    families, *tests = sys.argv[1:]
    sys.meta_path.insert(0, Remover(families.split(",")))
    for family in families.split(","):
        try:
            ask(family)
        except (BackendUnavailable, SystemExit) as error:
            print(str(error).removeprefix("error: "), flush=True)
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *tests]))
