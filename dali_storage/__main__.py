"""`python -m dali_storage`: `cli.doctor`, of this machine or of data, and the other commands."""

import importlib
import sys

from .contract.errors import BackendUnavailable
from .contract.faces import explained
from .contract.families import COMMANDS

if __name__ == "__main__":
    word = "".join(sys.argv[1:2])
    try:
        with explained():
            name = word if word in COMMANDS else "doctor"
            command = importlib.import_module(f"dali_storage.cli.{name}")
        sys.exit(command.main(sys.argv[2:]) if word in COMMANDS else command.main())
    except BackendUnavailable as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
