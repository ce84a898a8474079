"""`python -m dali_storage`: `cli.doctor`, of this machine or of data, and the other commands."""

import importlib
import sys

from bmap_tools.console import output

from .contract.errors import BackendUnavailable
from .contract.faces import explained
from .contract.families import COMMANDS

if __name__ == "__main__":
    words = sys.argv[1:]
    name = words.pop(0) if "".join(words[:1]) in COMMANDS else "doctor"
    try:
        with explained():
            command = importlib.import_module(f"dali_storage.cli.{name}")
        sys.exit(command.main(words))
    except BackendUnavailable as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        with output():
            """Of what --help and others have printed."""
