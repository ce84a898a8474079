"""`python -m dali_storage`: which backends and devices work on this machine, and why not.

`python -m dali_storage index` makes indexes: of containers, or of all samples below a root.
"""

import sys

from .cli import doctor, index

if __name__ == "__main__":
    sys.exit(index.main(sys.argv[2:]) if sys.argv[1:2] == ["index"] else doctor.main())
