"""`python -m dali_storage`: which backends and devices work on this machine, and why not.

`python -m dali_storage check` lists bad samples.
`python -m dali_storage index` makes indexes: of containers, or of all samples below a root.
"""

import sys

from .cli import check, doctor, index

if __name__ == "__main__":
    command = {"check": check.main, "index": index.main}.get("".join(sys.argv[1:2]))
    sys.exit(command(sys.argv[2:]) if command else doctor.main())
