"""readers.parquet of hf://: requests, the token, the commit, and refusals under way."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dali_storage import readers
from dali_storage.cli import index as make_index
from dali_storage.contract.errors import BackendUnavailable, ContainerChangedError
from dali_storage.readers.batches import batches
from tests.kit.objects.hub import MAIN, NAME, OTHER, a_hub, reply_with_part, serving
from tests.kit.parity import build
from tests.kit.tables import write_table

COUNT = 40  # rows of a file
PATHS = [f"data/train-{n:05}-of-00003.parquet" for n in range(3)]
PATTERN = f"hf://datasets/{NAME}/data/train-*.parquet"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with a_hub(monkeypatch, tmp_path / "cache") as hub:
        for commit, seed in ((MAIN, 0), (OTHER, 1)):
            hub.files[commit] = {path: table(tmp_path, seed) for path in PATHS}
        yield hub


def table(folder, seed):
    """A file with values so far apart that none are requested together."""
    random = np.random.default_rng(seed)
    cells = [{"bytes": random.bytes(40_000), "path": "x"} for _ in range(COUNT)]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    made = {"image": pa.array(cells, kind), "label": pa.array(range(COUNT))}
    write_table(folder / "x", made, row_group_size=16, data_page_size=200_000)
    return (folder / "x").read_bytes()


def expected(hub, commit=MAIN):
    tables = [pq.read_table(pa.BufferReader(hub.files[commit][path])) for path in PATHS]
    return [it["image"]["bytes"] for each in tables for it in each.to_pylist()]


def epoch(**given):
    given = {"paths": PATTERN, "batch_size": 8, "random_shuffle": True, "seed": 1} | given
    with batches(readers.parquet, pad_last_batch=True, return_index=True, **given) as found:
        rows = [it for batch in found for it in zip(*batch.outputs, strict=True)]
        return {int(index[0]): bytes(image) for image, _, index in rows}


def test_an_epoch_is_what_pyarrow_reads_and_the_hub_is_asked_once_a_file(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_canary\n")  # as a file of a secret has it
    hub.token = "hf_canary"
    values = epoch(backend_options={"transport": "own"})
    assert [values[row] for row in range(3 * COUNT)] == expected(hub)
    assert hub.asked == {
        ("revision", ""): 1,
        ("tree", "data"): 2,
        **{("resolve", path): 1 for path in PATHS},
    }
    assert hub.tokens == {"Bearer hf_canary"}
    assert not hub.leaked


def test_a_branch_that_moves_changes_nothing_and_another_commit_is_refused_by_a_state(hub):
    def made(**given):
        return build(readers.parquet, 8, {}, name="R", pad_last_batch=True, **given)

    first = made(paths=PATTERN, receipt="bytes")
    first.run()
    hub.commits["main"] = OTHER
    for _ in range(14):
        first.run()
    state, receipt = readers.state(first, "R"), readers.receipt(first, "R")
    assert f"/resolve/{MAIN}/".encode() in readers.catalog(first, "R").file_path(0)
    pinned = made(paths=PATTERN.replace(NAME, f"{NAME}@{MAIN}"), resume=state)
    assert [bytes(np.array(it)) for it in pinned.run()[0]] == expected(hub)[:8]
    moved = made(paths=PATTERN, receipt="bytes", resume=None)
    moved.run()
    assert readers.receipt(moved, "R")["dataset"] != receipt["dataset"]
    with pytest.raises(ValueError, match=r"the state.*resume with the same data set"):
        made(paths=PATTERN, resume=state).run()


def test_a_file_that_may_not_be_read_leads_to_the_page_of_its_conditions(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    hub.token = "another"
    page = f"{hub.endpoint}/datasets/{NAME}"
    with pytest.raises(PermissionError, match=f"set HF_TOKEN, and accept .* on {page}") as caught:
        epoch()
    assert caught.value.filename.startswith(f"{page}/resolve/{MAIN}/data/train-0000")
    assert "canary" not in repr(caught.value)


def test_the_limit_of_the_hub_is_waited_for(hub):
    hub.instead["resolve"] = [(429, b"", {"RateLimit": '"resolvers";r=0;t=1'})]

    def made():
        return readers.parquet(paths=PATTERN, name="R")

    pipeline = build(made, 8, {})
    pipeline.run()
    assert sum(hub.asked["resolve", path] for path in PATHS) == len(PATHS) + 1


def test_indexes_of_hf_urls_ask_the_hub_once_a_file_and_are_for_their_commit(hub, tmp_path, capsys):
    assert make_index.main([PATTERN, "-o", str(tmp_path), "--backend-option", "transport=own"]) == 0
    assert {it: hub.asked["resolve", it] for it in PATHS} == dict.fromkeys(PATHS, 1)
    indexes = sorted(tmp_path.glob("train-*.idx"))
    for transport in ("own", "obstore"):
        values = epoch(index_paths=indexes, backend_options={"transport": transport})
        assert [values[row] for row in range(3 * COUNT)] == expected(hub)
    hub.commits["main"] = OTHER
    with pytest.raises(ContainerChangedError, match=f"/{OTHER}/"):
        epoch(index_paths=indexes)
    assert make_index.main([PATTERN + "x", "-o", str(tmp_path)]) == 1
    assert "error: [Errno 2] there is no such file; there are" in capsys.readouterr().err
    hub.files[OTHER]["x.tar"] = b""
    assert make_index.main([f"hf://datasets/{NAME}/x.tar", "-o", str(tmp_path)]) == 1
    assert "only files whose names end in .parquet" in capsys.readouterr().err


def test_the_token_goes_to_the_hub_only(hub, monkeypatch, tmp_path):
    """Not to the server of the indexes, either."""
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    for path in PATHS:
        (tmp_path / Path(path).name).write_bytes(hub.files[MAIN][path])
    files = sorted(map(str, tmp_path.glob("train-*")))
    assert make_index.main(files) == 0
    asked = list[str | None]()

    def answer(it):
        asked.append(it.headers.get("Authorization"))
        reply_with_part(it, (tmp_path / it.path[1:]).read_bytes(), '"index"')

    with serving(answer) as port:
        names = [Path(it).with_suffix(".idx").name for it in files]
        values = epoch(index_paths=[f"http://127.0.0.1:{port}/{it}" for it in names])
    assert [values[row] for row in range(3 * COUNT)] == expected(hub)
    assert asked == [None] * 3
    assert not hub.leaked


def test_headers_that_are_given_are_sent_too_and_an_authorization_is_not_replaced(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    options = {"client_options": {"default_headers": {"x-more": "1"}}}
    hub.token = "hf_canary"
    assert len(epoch(backend_options=options)) == 3 * COUNT
    hub.token = "own"
    options["client_options"]["default_headers"]["Authorization"] = "Bearer own"
    assert len(epoch(backend_options=options)) == 3 * COUNT
    with pytest.raises(PermissionError):
        epoch(backend_options={"anonymous": True})
    assert hub.tokens == {"Bearer hf_canary", "Bearer own", None}


@pytest.mark.parametrize("token", ["hf_\N{SNOWMAN}", "hf_\x07"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(hub, monkeypatch, token):
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises((OSError, ValueError), match=r"characters that no token has; set HF_TOKEN"):
        epoch()
    with pytest.raises(ValueError, match=r"characters that no token has; set HF_TOKEN") as caught:
        epoch(paths=f"{hub.endpoint}/datasets/{NAME}/resolve/{MAIN}/{PATHS[0]}")
    assert "hf_" not in str(caught.value)


def test_without_the_package_its_installation_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules, "dali_storage.samples.hub", raising=False)
    with pytest.raises(BackendUnavailable, match=r"huggingface_hub is not installed; .*\[hub\]"):
        epoch()
