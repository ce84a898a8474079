"""`python -m dali_storage`: `cli.doctor`, of this machine or of data, and the other commands."""

import sys

from .cli import check, doctor, index, prove, receipt, replay

if __name__ == "__main__":
    commands = {"check": check.main, "index": index.main, "prove": prove.main}
    commands |= {"receipt": receipt.main, "replay": replay.main}
    command = commands.get("".join(sys.argv[1:2]))
    sys.exit(command(sys.argv[2:]) if command else doctor.main())
