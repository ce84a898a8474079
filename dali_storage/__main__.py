"""`python -m dali_storage`: which backends and devices work on this machine, and why not.

`python -m dali_storage check` lists bad samples.
`python -m dali_storage index` makes indexes: of containers, of all samples below a root, or of
annotations.
`python -m dali_storage prove` compares our reader with DALI's.
`python -m dali_storage receipt` makes the receipt of a data set, and compares that of an epoch.
`python -m dali_storage replay` shows which samples a step of a run had.
"""

import sys

from .cli import check, doctor, index, prove, receipt, replay

if __name__ == "__main__":
    commands = {"check": check.main, "index": index.main, "prove": prove.main}
    commands |= {"receipt": receipt.main, "replay": replay.main}
    command = commands.get("".join(sys.argv[1:2]))
    sys.exit(command(sys.argv[2:]) if command else doctor.main())
