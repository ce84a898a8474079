"""`pytest -p tests.kit.no_dali`: an import of DALI fails."""

import sys

sys.modules["nvidia.dali"] = None  # type: ignore[assignment]  # as import itself understands it
