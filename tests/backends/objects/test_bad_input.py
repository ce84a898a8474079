"""What goes wrong with objects, seen from a pipeline: a clear error, nothing lost, nothing left."""

import gc
import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any

import pytest

from dali_storage import readers
from dali_storage.backends.objects.errors import mapped
from dali_storage.backends.objects.store import Stores
from dali_storage.contract import registry
from dali_storage.contract.errors import BackendUnavailable, ObjectReplacedError
from tests.kit import paths
from tests.kit.dali import build, take
from tests.kit.objects.client import FOR_EVER, KEY_ID, SECRET, FaultServer
from tests.kit.process import lanes, started

COUNT = 12
CONTENTS = [b"%02d" % number * 50 for number in range(COUNT)]
NAMES = [f"train/{'ab'[number * 2 // COUNT]}/{number:02d}.jpg" for number in range(COUNT)]
URLS = [f"s3://data/{name}" for name in NAMES]
ROOT = {"file_root": "s3://data/train"}
Server = FaultServer

GIVEN = pytest.mark.parametrize("given", [ROOT, {"files": URLS}], ids=["root", "files"])


@pytest.fixture
def store(server):
    for name, content in zip(NAMES, CONTENTS, strict=True):
        server.put(f"data/{name}", content)
    return server


@pytest.fixture(autouse=True)
def _nothing_is_left(fault_server):
    """No thread of ours is left, and no connection to the server."""
    threads, connections = lanes(), fault_server.connections()
    yield
    fault_server.heal()
    until = time.monotonic() + 120
    while time.monotonic() < until:  # obstore closes connections some time later
        gc.collect()
        left = lanes() - threads, fault_server.connections() - connections
        if left == (set(), set()):
            return
        time.sleep(0.02)
    raise AssertionError(left)


def run(batches=1, **arguments):
    return take(build(readers.file, **arguments), batches)


def refuse(server):
    return {"endpoint": "http://127.0.0.1:1"}


def fail(mode):
    def make(server):
        for method in ("GET", "HEAD", "LIST"):
            server.fail(mode, n=FOR_EVER, on=method)
        return {}

    return make


Make = Callable[[Server], dict[str, Any]]
BAD: dict[str, tuple[Make, type[OSError], str]] = {
    "expired": (fail("expired"), PermissionError, "the credentials have expired; renew them"),
    "region": (fail("region"), OSError, "the bucket is in another region; set region"),
    "refuses": (refuse, ConnectionRefusedError, "endpoint http://127.0.0.1:1 refuses connections"),
    "throttled": (lambda it: fail("503")(it) | {"retry": 0.3}, OSError, "throttles"),
}


@GIVEN
@pytest.mark.parametrize(("make", "kind", "says"), BAD.values(), ids=[*BAD])
def test_a_store_that_refuses_is_an_error_that_says_what_to_do(store, given, make, kind, says):
    with pytest.raises(kind) as caught:
        run(**given, backend_options=make(store))
    assert says in str(caught.value)
    named = str(getattr(caught.value, "filename", ""))
    assert named in (URLS[0] if "files" in given else ("s3://data/train", "s3://data/train/"))


@pytest.mark.parametrize("given", [{"files": "s3://none/x"}, {"file_root": "s3://none/x"}])
def test_a_bucket_that_is_missing_is_named(store, given):
    with pytest.raises(FileNotFoundError, match="no such bucket; check its name") as caught:
        run(**given)
    assert str(caught.value.filename) == "s3://none/x"


@GIVEN
def test_without_credentials_only_anonymous_readers_work(store, given, monkeypatch):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ValueError, match="only AWS_ACCESS_KEY_ID is set"):
        run(**given)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(PermissionError, match=r"no credentials were found; .*anonymous=True"):
        run(**given)
    assert store.log() == []
    assert len(run(**given, backend_options={"anonymous": True})) == 4
    assert not any("authorization" in request.headers for request in store.log())


def test_a_root_without_objects_is_refused(store):
    store.put("data/flat", b"x")
    for root in ("none", "trai", "flat", "train/a/00.jpg"):
        with pytest.raises(ValueError, match="no files") as caught:
            run(file_root=f"s3://data/{root}")
        assert f"s3://data/{root}" in str(caught.value)


@pytest.mark.parametrize("name", ["s3://data/none.jpg", "s3://data/a//b", "s3:///x"])
def test_a_name_that_cannot_be_read_is_named(store, name):
    with pytest.raises((FileNotFoundError, ValueError)) as caught:
        run(files=[URLS[0], name])
    assert repr(name) in str(caught.value)


@GIVEN
@pytest.mark.parametrize("change", ["deleted", "replaced"])
def test_an_object_that_changes_in_mid_epoch_is_named(store, given, change):
    pipeline = build(readers.file, 2, **given, prefetch_queue_depth=1, pipeline={"seed": 1})
    got = take(pipeline, 6)  # now all are known
    last = f"data/{NAMES[-1]}"
    if change == "deleted":
        store.delete(last)
    else:
        store.put(last, bytes(len(CONTENTS[-1])))
    with pytest.raises((FileNotFoundError, ObjectReplacedError)) as caught:
        got += take(pipeline, 6)
    assert caught.value.filename == URLS[-1]
    assert isinstance(caught.value, FileNotFoundError) == (change == "deleted")
    assert {content for content, _ in got} == set(CONTENTS)


def test_no_sample_is_lost_by_an_error_that_passes(store):
    pipeline = build(readers.file, 4, files=URLS)
    got = take(pipeline, 3)  # now all are known
    store.fail("403", n=FOR_EVER)
    with pytest.raises(PermissionError) as caught:
        for _ in range(20):  # some were read ahead
            got += take(pipeline, 1)
    assert caught.value.filename in URLS
    store.heal()
    for _ in range(40):  # some had failed by then
        if len(got) < 5 * COUNT:
            with suppress(PermissionError):
                got += take(pipeline, 1)
    assert [content for content, _ in got] == 5 * CONTENTS


@pytest.mark.parametrize("mode", ["503", "cut"])
def test_a_failure_that_passes_is_not_seen_by_the_user(store, mode):
    for method in ("GET", "HEAD", "LIST"):
        store.fail(mode, n=2, on=method)
    assert [content for content, _ in run(3, **ROOT)] == CONTENTS
    assert sum(request.fault == mode for request in store.log()) >= 3


def test_ctrl_c_does_not_wait_for_answers(store):
    store.set(latency=1000)
    program = (
        "from tests.kit.dali import build\nfrom dali_storage import readers\n"
        f"pipeline = build(readers.file, files={URLS!r})\n"
        "try: pipeline.run()\nexcept KeyboardInterrupt: print('interrupted', flush=True); raise"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started(command, **pipes, cwd=paths.ROOT) as process:
        store.until(lambda log: log)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)  # of 1,000 seconds
    assert output == "interrupted\n"
    assert errors.endswith("KeyboardInterrupt\n")
    assert SECRET not in errors


def test_without_obstore_the_error_says_how_to_install_it(monkeypatch):
    class Missing:
        @staticmethod
        def find_spec(name, *_):
            if name == "obstore":
                raise ModuleNotFoundError("No module named 'obstore'", name=name)

    for name in [*sys.modules]:
        if name.startswith(("dali_storage.backends.object", "obstore")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])
    with pytest.raises(BackendUnavailable) as caught:
        registry.load("object-store")
    assert caught.value.remedy == "pip install 'dali-storage[object-store]'"


def test_a_wrong_option_is_named_without_its_value():
    for options, says in (
        ({"secret_access_key": SECRET}, "has no option secret_access_key"),
        ({"client_options": {"timeout": SECRET}}, "client_options['timeout']"),
        ({"endpoint": f"http://me:{SECRET}@host"}, "endpoint must be like"),
        ({"timeout": -1}, "timeout"),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            run(files=URLS, backend_options=options)
        assert says in str(caught.value)
        assert SECRET not in str(caught.value)


# --- secrets --------------------------------------------------------------------------------------

CANARIES = (SECRET, KEY_ID, "canary-token", "canary-header", "canary-sas")


def written(error):
    """All that an exception says, and those that it hides behind it."""
    texts = []
    while error is not None:
        texts += [*traceback.format_exception(error), repr(error), repr(vars(error))]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "".join(texts)


def test_no_secret_is_in_an_error_a_log_or_a_local_variable(store, monkeypatch, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "canary-token")
    monkeypatch.setenv("RUST_LOG", "trace")
    options = {"client_options": {"default_headers": {"x-canary": "canary-header"}}, "retry": 0}
    shown, variables = list[str](), list[str]()
    for (make, *_), given in product(BAD.values(), (ROOT, {"files": URLS})):
        with pytest.raises(Exception) as caught:
            run(**given, backend_options=options | make(store) | {"retry": 0})
        shown.append(written(caught.value))
        frames = traceback.StackSummary.extract(  # but for this one
            traceback.walk_tb(caught.tb.tb_next), capture_locals=True
        )
        assert any(frame.locals and "self" in frame.locals for frame in frames)
        variables.append("".join(frames.format()))
        store.heal()
    pipeline = build(
        readers.file, **ROOT, backend_options=options, pipeline={"enable_checkpointing": True}
    )
    take(pipeline, 1)
    assert all(
        request.headers["x-canary"] == "canary-header"
        and request.headers["x-amz-security-token"] == "canary-token"
        for request in store.log()
    )
    shown += [repr(pipeline.checkpoint()), repr(pipeline), str(vars(pipeline))]
    shown += [repr(pipeline.reader_meta()), caplog.text, *capfd.readouterr()]
    assert not [text for text, canary in product(shown, CANARIES) if canary in text]
    secrets = SECRET, KEY_ID, "canary-token"  # options are the user's own variables
    assert not [text for text, canary in product(variables, secrets) if canary in text]


SECRET_URLS = [
    "https://me:canary@host/a.jpg",
    "https://me:can/canary@host/a.jpg",
    "https://host/a.jpg?X-Amz-Signature=canary",
    "https://host/a.jpg#canary",
    "https://host/\udcff?canary",
    "https://me:canary@host/\udcff",
    "HTTPS://host/a.jpg?sig=canary",
    "s3://KEY:canary@bucket/a.jpg",
    "s3://KEY:can/canary@bucket/a.jpg",
    "az://container/a.jpg?sv=1&sig=canary",
    "ftp://me:canary@host/a.jpg",
    "hdfs://host/a.jpg?token=canary",
]
PLACES: dict[str, Callable[[str, str], Any]] = {
    "file_root": lambda url, _: build(readers.file, file_root=url),
    "files": lambda url, _: build(readers.file, files=["s3://b/x", url]),
    "mixed": lambda url, _: build(readers.file, files=["/a", url]),
    "root and files": lambda url, _: build(readers.file, file_root=url, files=["s3://b/x"]),
    "python-file": lambda url, _: build(readers.file, files=url, backend="python-file"),
    "path of a list": lambda url, _: build(readers.file, file_list=url),
    "list": lambda _, path: build(readers.file, file_list=path),
    "list, python-file": lambda _, path: build(readers.file, file_list=path, backend="python-file"),
    "webdataset": lambda url, _: build(readers.webdataset, paths=url, ext="jpg"),
    "index": lambda url, _: build(
        readers.webdataset, paths="s3://b/x.tar", index_paths=url, ext="jpg"
    ),
    "numpy": lambda url, _: build(readers.numpy, file_root=url),
    "stores": lambda url, _: Stores().locate(os.fsencode(url)),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_in_a_url_is_refused_and_not_shown(server, tmp_path, place):
    lists = ("{} 0\n", "{} x\n", "s3://b/x 0\n{} x\n") if "list" in place else ("",)
    for url, text in product(SECRET_URLS, lists):
        (tmp_path / "list").write_bytes(os.fsencode(text.format(url)))
        with pytest.raises(ValueError) as caught:
            PLACES[place](url, str(tmp_path / "list"))
        error = caught.value
        texts = [str(error), repr(error.args), str(vars(error)), str(error.__cause__)]
        assert "canary" not in "".join(texts)
        assert error.__suppress_context__ or not error.__context__
    assert server.log() == []


def test_a_signed_url_of_azure_is_not_shown(store, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "me")
    monkeypatch.setenv("AZURE_STORAGE_SAS_KEY", "sv=1&sig=canary-sas")
    opened, key = Stores(endpoint=store.url).locate(b"az://data/x")
    for mode in ("403", "503", "reset", "cut", "404", "400", "redirect"):
        store.fail(mode, n=FOR_EVER, arg="http://127.0.0.1:1/?sig=canary-sas")
        with pytest.raises(Exception) as caught:
            bytes(opened.get(key).bytes())
        assert "canary-sas" not in written(mapped(caught.value, b"az://data/x"))
        store.heal()
