"""python -m dali_storage unpack. What pyarrow reads of the files must be the same."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dali_storage.cli import unpack
from dali_storage.formats.parquet import catalog
from tests.kit.tables import write_table


def packed(path, **options):
    """A table with several columns, two of them of bytes, as most writers store it."""
    cells = [{"bytes": bytes([n]) * 300, "path": f"{n}.jpg"} for n in range(50)] * 2
    columns = {
        "image": pa.array(cells),
        "mask": pa.array([b"m" * n for n in range(100)], pa.large_binary()),
        "label": pa.array([n % 5 for n in range(100)], pa.int16()),
        "text": pa.array(["a", "b"] * 50),
    }
    table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {}})})
    given = {"compression": "snappy", "use_dictionary": True, "row_group_size": 30}
    return table, write_table(path, table, **given | options)


@pytest.mark.parametrize(("chosen", "plain"), [([], {0, 2}), (["image"], {0}), (["mask"], {2})])
def test_the_columns_are_plain_and_all_else_is_as_before(chosen, plain, tmp_path, capsys):
    table, path = packed(
        tmp_path / "x.parquet", compression={"text": "zstd", "image.bytes": "gzip"}
    )
    (tmp_path / "out").mkdir()
    options = [word for name in chosen for word in ("--column", name)]
    assert unpack.main([path, "-o", str(tmp_path / "out"), *options]) == 0
    target = tmp_path / "out/x.parquet"
    assert capsys.readouterr().out == f"{str(target)!r}: {path!r}, unpacked\n"
    assert pq.read_table(target).equals(table, check_metadata=True)
    old, new = (pq.read_metadata(it) for it in (path, target))
    assert new.num_row_groups == old.num_row_groups == 4
    for group in range(4):
        before, after = (
            [it.row_group(group).column(n) for n in range(it.num_columns)] for it in (old, new)
        )
        for number, (theirs, ours) in enumerate(zip(before, after, strict=True)):
            kept = number not in plain
            assert ours.compression == (theirs.compression if kept else "UNCOMPRESSED")
            assert ours.has_dictionary_page == (kept and theirs.has_dictionary_page)
    columns = [name for number, name in ((0, "image"), (2, "mask")) if number in plain]
    content = target.read_bytes()
    found = catalog.find([os.fsencode(target)], columns, "label").ranges
    places = zip(found.starts.tolist(), found.sizes.tolist(), strict=True)
    values = [content[start : start + size] for start, size in places]
    rows = table.to_pylist()
    expected = [row[it]["bytes"] if it == "image" else row[it] for row in rows for it in columns]
    assert values == expected


def test_what_cannot_be_unpacked_is_named_and_the_others_are_written(tmp_path, capsys):
    _, path = packed(tmp_path / "x.parquet")
    (tmp_path / "text").write_bytes(b"text")
    (tmp_path / "out").mkdir()
    assert unpack.main([str(tmp_path / "text"), path, "-o", str(tmp_path / "out")]) == 1
    assert [*map(str, (tmp_path / "out").iterdir())] == [str(tmp_path / "out/x.parquet")]
    assert f"error: {str(tmp_path / 'text')!r}: the file is not Parquet" in capsys.readouterr().err
    assert unpack.main([path, "-o", str(tmp_path / "out"), "--column", "label"]) == 1
    assert f"error: {path!r}: the column 'label' has values of type" in capsys.readouterr().err
    before = Path(path).read_bytes()
    assert unpack.main([path, "-o", str(tmp_path)]) == 1
    assert f"error: {path!r}: it would be overwritten" in capsys.readouterr().err
    assert Path(path).read_bytes() == before
    Path(path).write_bytes(before[:500] + bytes(500) + before[1000:])
    assert unpack.main([path, "-o", str(tmp_path / "out")]) == 1
    assert f"error: {path!r}: " in capsys.readouterr().err
    assert unpack.main([str(tmp_path / "none"), "-o", str(tmp_path / "out")]) == 1
    assert "none" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        unpack.main([path, f"{tmp_path}/out/x.parquet", "-o", str(tmp_path / "more")])
    assert "two files have the same name" in capsys.readouterr().err
