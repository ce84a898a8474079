"""`python -m dali_storage`: `cli.doctor`, of this machine or of data, and the other commands."""

import sys

if __name__ == "__main__":
    try:
        from .cli import check, doctor, index, prove, receipt, replay

        commands = {"check": check.main, "index": index.main, "prove": prove.main}
        commands |= {"receipt": receipt.main, "replay": replay.main}
        command = commands.get("".join(sys.argv[1:2]))
        sys.exit(command(sys.argv[2:]) if command else doctor.main())
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
