"""`python -m dali_storage`: which backends and devices work on this machine, and why not."""

from __future__ import annotations

import sys

from . import devices, registry


def main() -> int:
    """Print a line a backend, then a line a device; 0 if one of the backends works."""
    verdicts = {name: _why_not(name) for name in registry.names()}
    width = max(map(len, verdicts), default=0)
    for name, why_not in verdicts.items():
        print(f"{name:{width}}  {'works' if why_not is None else 'does not work here: ' + why_not}")
    for device, state in devices.explain():
        print(f"{device}  {state}")
    return 0 if None in verdicts.values() else 1


def _why_not(name: str) -> str | None:
    try:
        problem = registry.load(name).unavailable()
        return str(problem) if problem else None
    except ImportError as error:
        return (
            f"it needs the package {error.name or error}: pip install {error.name}"
            if error.name
            else str(error)
        )
    except (TypeError, ValueError) as error:  # a wrong plugin must not hide the others
        return str(error)


if __name__ == "__main__":
    sys.exit(main())
