"""Names of files on a hub: what they stand for, and what is said where there is nothing."""

import errno
import json
import os
import threading
from pathlib import Path

import pytest

from tests.kit.objects.hub import MAIN, NAME, OTHER, a_hub, serving

FILES = {
    "README.md": b"# set",
    "top.parquet": b"1",
    **{f"data/train-{n:05}-of-00003.parquet": bytes(n + 2) for n in range(3)},
    "data/test-00000-of-00001.parquet": b"1234567",
    "data/old/train-x.parquet": b"12345678",
    "data/a b#%.parquet": b"123456789",
}
TRAIN = [f"data/train-{n:05}-of-00003.parquet" for n in range(3)]


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with a_hub(monkeypatch, tmp_path) as hub:
        hub.files[MAIN] = FILES
        yield hub


def find(*paths, revision=""):
    from dali_storage.samples.hub import find

    return find([f"hf://datasets/{NAME}{revision}/{path}".encode() for path in paths])


FOUND = {
    "a file": (["data/test-00000-of-00001.parquet"], ["data/test-00000-of-00001.parquet"]),
    "at the top": (["top.parquet"], ["top.parquet"]),
    "a pattern": (["data/train-*.parquet"], TRAIN),
    "a set of characters": (["data/train-0000[02]-*"], TRAIN[::2]),
    "a pattern of folders": (["d*/old/*.parquet"], ["data/old/train-x.parquet"]),
    "of the top": (["*.parquet"], ["top.parquet"]),
    "in the order given": ([TRAIN[1], "top.parquet"], [TRAIN[1], "top.parquet"]),
    "quoted": (["data/a b#%.parquet"], ["data/a%20b%23%25.parquet"]),
}  # fmt: skip


@pytest.mark.parametrize(("names", "expected"), FOUND.values(), ids=FOUND)
def test_names_are_urls_at_the_commit_with_sizes(hub, names, expected):
    urls, known = find(*names)
    base = f"{hub.endpoint}/datasets/{NAME}/resolve/{MAIN}/"
    assert [it.decode() for it in urls] == [base + it for it in expected]
    if names != ["data/a b#%.parquet"]:
        assert [known[it][0] for it in urls] == [len(FILES[it]) for it in expected]


def test_a_revision_is_asked_for_once_and_stays(hub):
    hub.commits["refs/convert/parquet"] = OTHER
    hub.files[OTHER] = {"default/train/0000.parquet": b"x", "default/train/0001.parquet": b"y"}
    names = "default/train/0000.parquet", "default/train/*.parquet"
    urls, _ = find(*names, revision="@refs/convert/parquet")
    assert [OTHER in it.decode() for it in urls] == [True] * 3
    assert hub.asked == {("revision", ""): 1, ("tree", "default/train"): 1}
    assert len(find("top.parquet", revision=f"@{MAIN}")[0]) == 1


JSON = {"Content-Type": "application/json"}
FAILURES = {
    "gated": (403, b"", {"X-Error-Code": "GatedRepo"}, PermissionError, "accept its conditions on"),
    "missing": (401, b"", {"X-Error-Code": "RepoNotFound"}, FileNotFoundError, "set HF_TOKEN, or"),
    "refused": (403, b"", {}, PermissionError, "the token may not read this; look at {page}"),
    "wrong token": (
        401,
        b"",
        {"X-Error-Message": "Invalid credentials in Authorization header"},
        PermissionError,
        "the hub refuses the token; set HF_TOKEN",
    ),
    "limited": (429, b"", {"RateLimit": '"api";r=0;t=55'}, OSError, "limits requests; wait"),
    "failed": (500, b"<html>", {}, OSError, "the hub failed .500.; try again later"),
    "HTML": (200, b"<html>Welcome", {}, OSError, "not its own .*check HF_ENDPOINT, and the prox"),
    "other JSON": (200, b"[]", JSON, OSError, "not its own .*check HF_ENDPOINT"),
    "renamed": (
        200,
        json.dumps({"id": "new/name", "sha": MAIN}).encode(),
        JSON,
        FileNotFoundError,
        "was renamed; write hf://datasets/new/name",
    ),
}


@pytest.mark.parametrize(
    ("status", "body", "headers", "kind", "says"), FAILURES.values(), ids=FAILURES
)
def test_a_failure_says_what_to_do(hub, status, body, headers, kind, says):
    hub.instead["revision"] = [(status, body, headers)]
    page = f"{hub.endpoint}/datasets/{NAME}"
    with pytest.raises(kind, match=says.format(page=page)) as caught:
        find("top.parquet")
    assert caught.value.filename == f"hf://datasets/{NAME}/top.parquet"
    assert "hf_" not in str(caught.value)


def test_a_hub_that_does_not_answer_is_named_with_the_remedies(hub, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        OSError, match=r"cannot be reached .*HF_ENDPOINT; HF_HUB_OFFLINE=1"
    ) as caught:
        find("top.parquet")
    assert caught.value.errno == errno.EHOSTUNREACH


def test_a_hub_that_accepts_requests_and_never_answers_is_not_waited_for(hub, monkeypatch):
    from huggingface_hub import constants

    from dali_storage.samples import hub as names

    monkeypatch.setattr(names, "_SECONDS", 0.1)
    end = threading.Event()
    with serving(lambda it: end.wait(60)) as port:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
        with pytest.raises(OSError, match=r"cannot be reached .ReadTimeout"):
            find("top.parquet")
        end.set()


def test_a_password_in_the_endpoint_is_refused_and_not_shown(hub, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://user:canary@127.0.0.1:9")
    with pytest.raises(ValueError, match=r"HF_ENDPOINT: .* password in it; remove it") as caught:
        find("top.parquet")
    assert "canary" not in str(caught.value)


def test_a_revision_that_is_not_there_is_named(hub):
    with pytest.raises(FileNotFoundError, match=r"no such revision; look at http.*'hf://.*@v2/top"):
        find("top.parquet", revision="@v2")


@pytest.mark.parametrize("path", ["data/train.parquet", "daten/*.parquet", "data/*.tar"])
def test_a_name_of_nothing_is_told_what_is_there(hub, path):
    with pytest.raises(
        FileNotFoundError, match=r"no such file; there are 'data/a b#%.parquet', 'data/ol"
    ):
        find(path)


NAMES = {
    "hf://user/set/a.parquet": "is no file of a data set; write hf://datasets/OWNER/NAME/PATH",
    "hf://datasets/user/set": "is no file of a data set",
    "hf://datasets/user/set/": "is no file of a data set",
    "hf://datasets/user/set/**/a.parquet": r"has \*\*; write a \* for each folder",
    "/data/a.parquet": "'/data/a.parquet' is no file of a data set",
}


@pytest.mark.parametrize(("name", "says"), NAMES.items())
def test_another_name_is_refused(hub, name, says):
    from dali_storage.samples.hub import find

    with pytest.raises(ValueError, match=says):
        find([name.encode()])
    assert not hub.asked


def test_the_local_cache_is_read_where_it_is(hub, monkeypatch, tmp_path):
    """The oracle is huggingface_hub's own download."""
    import huggingface_hub

    top = huggingface_hub.snapshot_download(
        NAME, repo_type="dataset", cache_dir=tmp_path, allow_patterns="data/t*"
    )
    local = [os.path.join(top, it) for it in TRAIN]
    assert find("data/train-*.parquet") == ([*map(os.fsencode, local)], {})
    assert [Path(it).read_bytes() for it in local] == [FILES[it] for it in TRAIN]
    assert find("data/train-*.parquet", "top.parquet")[1]  # not all are there
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    hub.asked.clear()
    assert find("data/train-*.parquet")[0] == [*map(os.fsencode, local)]
    assert find(TRAIN[0], revision=f"@{MAIN}")[0] == [os.fsencode(local[0])]
    os.unlink(os.path.realpath(local[1]))
    with pytest.raises(
        FileNotFoundError, match=r"of the split, 'data/train-00001-of-00003.parquet' is mis"
    ):
        find("data/train-*.parquet")
    with pytest.raises(FileNotFoundError, match="local cache does not have this revision; run hf"):
        find("top.parquet", revision=f"@{OTHER}")
    assert not hub.asked
