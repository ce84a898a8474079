"""`python -m dali_storage`: which backends and devices work on this machine, and why not."""

import sys

from . import doctor

if __name__ == "__main__":
    sys.exit(doctor.main())
