"""What other packages write: the table of docs/parquet.md. The oracle is what was written."""

import re
import subprocess
import sys

import numpy as np
import pytest

from dali_storage.cli import unpack
from tests.formats.test_parquet import found
from tests.kit.pages import text_of
from tests.kit.tables import write_table

ROWS = re.findall(
    r"^\| (\w+).*? \| `(.+?)`.*? \| (yes|no: (\w+))", text_of("docs/parquet.md"), re.M
)
WRITERS = [(package, call, codec) for package, call, _, codec in ROWS if "path" in call]

BEGIN = {
    "datasets": """
from datasets import Dataset, Features, Image
binaries = Dataset(table)
images = [{"bytes": it, "path": "x"} for it in table["image"].to_pylist()]
images = Dataset.from_dict({"image": images}, features=Features({"image": Image(decode=False)}))
""",
    "duckdb": "import duckdb; frame = table",
    "fastparquet": "import fastparquet; frame = table.to_pandas()",
    "pandas": "import pandas; frame = table.to_pandas()",
    "polars": "import polars; frame = polars.from_arrow(table)",
    "pyarrow": "",
}
VALUES = [np.random.default_rng(n).bytes(2000 + 97 * n) for n in range(60)]


@pytest.mark.parametrize(
    ("package", "call", "codec"),
    [pytest.param(*it, marks=[pytest.mark.long] * (it[0] != "pyarrow")) for it in WRITERS],
)
def test_what_a_package_writes_is_read_or_refused_and_unpacked(package, call, codec, tmp_path):
    source, path = tmp_path / "source", tmp_path / "x.parquet"
    write_table(source, {"image": VALUES})
    begin = "import sys, pyarrow.parquet as pq\nsource, path = sys.argv[1:]\n"
    script = f"{begin}table = pq.read_table(source)\n{BEGIN[package]}\n{call}"
    command = [sys.executable, "-c", script, str(source), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    if re.search(f"named '{package}'|dependency '{package}'", done.stderr):
        pytest.skip(f"no {package}: pip install {package}")
    assert done.returncode == 0, done.stderr
    if codec:
        with pytest.raises(ValueError, match=rf"{codec}.*unpack"):
            found(path)
        (tmp_path / "new").mkdir()
        assert unpack.main([str(path), "-o", str(tmp_path / "new")]) == 0
        path = tmp_path / "new/x.parquet"
    assert found(path) == VALUES
