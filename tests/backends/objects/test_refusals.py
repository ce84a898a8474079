"""What is refused before any request is sent: a table of calls, variables, and words of the errors.

What depends on an answer of the store is in test_errors.py.
"""

import os
import re
from functools import partial

import pytest

from dali_storage import Catalog, readers
from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.backends.objects.store import Stores
from tests.kit.objects.cached import nothing_is_left
from tests.kit.parity import build

ONE = Catalog.from_names([b"s3://data/x"], [0])


def locate(url):
    Stores().locate(os.fsencode(url))


def listing(root):
    ObjectStoreReader.remote().listing(os.fsencode(root), list)


URLS = {
    "/x/y": "is a file, not an object",
    "s3:///x": "has no valid bucket name",
    "s3://da ta/x": "has no valid bucket name",
    "gs://-/x": "has no valid bucket name",
    "http:///x": "has no valid host name",
    "http://a b/x": "has no valid host name",
    "https://h:99999/x": "has no valid host name",
    "https://[::/x": "has no valid host name",
    "https://:/x": "has no valid host name",
    "s3://data": "has an empty",
    "s3://data/a//b": "has an empty",
    "s3://data//b": "has an empty",
    "s3://data/b/": "has an empty",
    "s3://data/a\tb": "control characters",
    "s3://data/\udcff": "is not UTF-8",
    "http://h/a%2e./%2e%2e/b": r"'\.\.' part",
}
ROOTS = "s3://data/train//", "s3://data//train", "s3://data/a/../b"
OPTIONS = [
    ({"timeout": 0}, "timeout must be a number from 0.001 to 3600"),
    ({"timeout": float("nan")}, "timeout must be a number"),
    ({"endpoint": "host:80"}, "endpoint must be like http://host:port, not 'host:80'"),
    *(
        ({"endpoint": it}, "endpoint must be like")
        for it in ("http://h:x", "http://h:99999", "http://h/a b\n", "HTTP://h", "http://h/#x")
    ),
    ({"endpoint": b"http://h"}, "endpoint must be like"),
    ({"endpoint": "http://me:canary@host"}, "endpoint must be like"),
    ({"endpoint": "http://host/?key=canary"}, "endpoint must be like"),
    ({"region": 5}, "object-store: region must be like"),
    ({"region": "a b\n"}, "object-store: region must be like"),
    ({"client_options": "proxy_url"}, "object-store: client_options must be"),
    ({"client_options": [1]}, "object-store: client_options must be"),
    ({"client_options": {"colour": 1}}, r"client_options\['colour'\]"),
    ({"client_options": {"root_certificate": "no"}}, r"client_options\['root_certificate'\]"),
    ({"client_options": {"timeout": "canary"}}, r"client_options\['timeout'\]"),
]
CACHES = [
    ({"cache_bytes": 1 << 30}, "cache_bytes needs the option cache"),
    ({"cache": "x", "check": False}, "cache needs check=True"),
    ({"cache": ""}, "cache must be the path of a directory, not ''"),
    ({"cache": "a\0b"}, "cache must be the path of a directory, not 'a.x00b'"),
    ({"cache": 17}, "cache must be the path of a directory, not 17"),
]
VARIABLES = [
    *(
        ("s3", name, "canary\r", f"^{name} contains a line break")  # obstore would panic
        for name in ("AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_REGION")
    ),
    ("gs", "GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent", "^'gs://b/x' cannot be opened: check"),
    ("gs", "GOOGLE_SERVICE_ACCOUNT_KEY", '{"private_key": "canary"}', "^'gs://b/x' cannot be"),
    ("az", "AZURE_STORAGE_ACCOUNT_KEY", "canary!", "^'az://b/x' cannot be opened"),
]
TEMPLATES = [
    ({"file_root": "https://host/x"}, "a web server does not list its files"),
    ({"file_root": "s3://data", "backend": "python-file"}, "cannot read 's3://data'"),
    ({"files": ["s3://{}/x"]}, "must have one {}, .* not in its bucket"),
    ({"files": ["s3://data/{}.jpg", "/masks/{}.png"]}, "1 of 2 names are URLs"),
    ({"files": ["s3://data/{}.jpg"], "file_root": "/x"}, "names in files are URLs, and file_r"),
    ({"files": [["s3://data/a"], ["/masks/b"]]}, "1 of 2 names are URLs"),
]
NO_INDEX = "{} must be given for 's3://data/a.*python -m dali_storage index"
TAR, TFRECORD, MDB = (f"s3://data/a.{it}" for it in ("tar", "tfrecord", "mdb"))
ROWS = [
    *((partial(locate, url), {}, f"^{re.escape(repr(url))}.*{says}") for url, says in URLS.items()),
    (partial(locate, "http://me:canary@host/x"), {}, "password"),
    *(
        (partial(listing, root), {}, "s3://data/.* has an empty, '.' or '..' part")
        for root in ROOTS
    ),
    *((partial(Stores, **options), {}, says) for options, says in OPTIONS),
    *((partial(ObjectStoreReader, ONE, **options), {}, says) for options, says in CACHES),
    *((partial(locate, f"{at}://b/x"), {name: it}, says) for at, name, it, says in VARIABLES),
    *(
        (partial(build, readers.columns, 1, {}, **{"files": ["{}.jpg"]} | given), {}, says)
        for given, says in TEMPLATES
    ),
    (partial(readers.webdataset, paths=TAR, ext="n"), {}, NO_INDEX.format("index_paths")),
    (partial(readers.tfrecord, path=TFRECORD, features={}), {}, NO_INDEX.format("index_path")),
    (partial(readers.lmdb, path=MDB), {}, NO_INDEX.format("index_path")),
]


@pytest.mark.parametrize(("call", "variables", "says"), ROWS, ids=[says for *_, says in ROWS])
def test_a_mistake_is_refused_by_name_before_a_request(
    server, tmp_path, monkeypatch, call, variables, says
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with nothing_is_left(tmp_path), pytest.raises((TypeError, ValueError), match=says) as caught:
        call()
    error = caught.value
    assert "canary" not in str(error)
    assert error.__suppress_context__ or not error.__context__
    assert server.log() == []
    assert not [*tmp_path.iterdir()]
