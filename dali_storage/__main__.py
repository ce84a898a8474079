"""`python -m dali_storage`: which backends and devices work on this machine, and why not."""

from __future__ import annotations

import sys

from . import doctor

if __name__ == "__main__":
    sys.exit(doctor.main())
