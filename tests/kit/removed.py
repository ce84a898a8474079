"""`python -m tests.kit.removed FAMILY TESTS...`: pytest without the modules of a family."""

import sys

import pytest

from dali_storage.contract.families import FAMILIES, family_of


class Remover:
    """A finder of modules that finds none of a family."""

    def __init__(self, family: str) -> None:
        self._family = FAMILIES[family]

    def find_spec(self, name: str, *_: object) -> None:
        if family_of(name) is self._family:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if __name__ == "__main__":
    sys.meta_path.insert(0, Remover(sys.argv[1]))
    sys.exit(pytest.main(sys.argv[2:]))
