"""What goes wrong with objects, seen from a pipeline: a clear error, nothing lost, nothing left."""

import gc
import logging
import os
import sys
import traceback
from itertools import product

import pytest

from dali_storage import readers
from dali_storage.backends.objects.errors import mapped
from dali_storage.backends.objects.store import Stores
from dali_storage.contract import registry
from dali_storage.contract.errors import BackendUnavailable
from tests.kit.dali import build, take
from tests.kit.objects.client import FOR_EVER, KEY_ID, SECRET
from tests.kit.process import lanes, wait_until

COUNT = 12
CONTENTS = [b"%02d" % number * 50 for number in range(COUNT)]
NAMES = [f"train/{'ab'[number * 2 // COUNT]}/{number:02d}.jpg" for number in range(COUNT)]
URLS = [f"s3://data/{name}" for name in NAMES]
ROOT = {"file_root": "s3://data/train"}

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

    def nothing_is_left():  # obstore closes connections some time later
        gc.collect()
        return lanes() <= threads and fault_server.connections() <= connections

    wait_until(nothing_is_left)


def run(batches=1, **arguments):
    return take(build(readers.file, **arguments), batches)


NOBODY = {"endpoint": "http://127.0.0.1:1"}


def fail(mode, arg=None, **options):
    def make(server):
        for method in ("GET", "HEAD", "LIST"):
            server.fail(mode, FOR_EVER, arg, on=method)
        return options

    return make


BAD = [
    fail("expired"),
    fail("region"),
    lambda _: NOBODY,
    fail("proxy", "gzip"),
    fail("proxy", "cut"),
    fail("503"),
]


@GIVEN
def test_a_store_that_refuses_is_an_error_that_says_what_to_do(store, given):
    fail("expired")(store)
    with pytest.raises(PermissionError, match="the credentials have expired; renew them") as caught:
        run(**given)
    assert caught.value.filename == (URLS[0] if "files" in given else "s3://data/train")


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
    assert caught.value.remedy.endswith("[object-store]'")


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
    for make, given in product(BAD, (ROOT, {"files": URLS})):
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
PLACES = {
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
