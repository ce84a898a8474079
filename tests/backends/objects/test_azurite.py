"""az:// against Azurite, Microsoft's emulator of Azure's blobs.

It is run with `npm install azurite` where Node is, and node_modules/.bin in PATH.
"""

import base64
import hmac
import re
import shutil
import subprocess
import urllib.request
from email.utils import formatdate

import obstore
import pytest
from obstore.store import AzureStore

from dali_storage import readers
from dali_storage.contract.errors import ObjectReplacedError
from tests.kit.parity import build, take

pytestmark = [pytest.mark.usefixtures("pipelines_end"), pytest.mark.long]

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account of Azurite and its key, which everybody knows."""
FILES = {
    "train/a-b/1.jpg": b"one",
    "train/a/2.jpg": b"two" * 1000,
    "train/3.jpg": b"",
    "a/1.jpg": b"x",
}


@pytest.fixture(scope="module")
def azurite(tmp_path_factory):
    """The endpoint of the account."""
    if not (command := shutil.which("azurite-blob")):
        pytest.skip("no Azurite: npm install azurite, and add node_modules/.bin to PATH")
    arguments = [command, "--blobPort", "0", "--skipApiVersionCheck", "--disableTelemetry"]
    arguments += ["--location", str(tmp_path_factory.mktemp("azurite"))]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            if found := re.search(r"listens on (http://127\.0\.0\.1:\d+)", line):
                break
        try:
            make_container(f"{found[1]}/{ACCOUNT}", "data")
            yield f"{found[1]}/{ACCOUNT}"
        finally:
            process.terminate()


def make_container(endpoint, name):
    """Create a container, signed with the key: learn.microsoft.com, "Authorize with Shared Key"."""
    date = formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": "2021-12-02"}
    lines = [*(f"{key}:{value}" for key, value in headers.items())]
    resource = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    text = "\n".join(["PUT", *[""] * 11, *lines, resource])
    digest = hmac.digest(base64.b64decode(KEY), text.encode(), "sha256")
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    headers["Content-Length"] = "0"
    url = f"{endpoint}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, None, headers, method="PUT")).close()


@pytest.fixture
def store(azurite, monkeypatch):
    """The container "data" with FILES; the environment names the account."""
    for name, value in (("ACCOUNT_NAME", ACCOUNT), ("ACCOUNT_KEY", KEY), ("ENDPOINT", azurite)):
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    options = {"allow_http": True}
    store = AzureStore(
        "data", account_name=ACCOUNT, account_key=KEY, endpoint=azurite, client_options=options
    )
    for key, content in FILES.items():
        obstore.put(store, key, content)
    return store


@pytest.mark.parametrize("transport", ["own", "obstore"])
def test_samples_labels_and_bytes_are_by_the_rules_of_s3(store, transport):
    options = {"name": "R", "file_root": "az://data/train"}
    options |= {"backend_options": {"transport": transport}}
    pipeline = build(readers.file, 3, {}, **options)
    ((data, labels),) = take(pipeline, 1)
    assert [content for _, _, content in data] == [b"", b"one", b"two" * 1000]
    assert [int.from_bytes(label, "little") for _, _, label in labels] == [0, 1, 2]
    catalog = readers.catalog(pipeline, "R")
    assert [catalog.path(i) for i in range(3)] == [
        b"az://data/train/3.jpg",
        b"az://data/train/a-b/1.jpg",
        b"az://data/train/a/2.jpg",
    ]


def test_an_object_that_is_replaced_is_refused(store):
    pipeline = build(readers.file, 1, {}, file_root="az://data/a", file_filters="*")
    assert take(pipeline, 1)[0][0][0][2] == b"x"
    pipeline = build(readers.file, 1, {}, file_root="az://data/a", file_filters="*")
    obstore.put(store, "a/1.jpg", b"y")
    with pytest.raises(ObjectReplacedError) as info:
        take(pipeline, 1)
    assert info.value.filename == "az://data/a/1.jpg"


@pytest.mark.parametrize(("name", "url"), [("key", "az://data/none"), ("container", "az://none/x")])
def test_what_is_missing_is_named(store, name, url):
    pipeline = build(readers.file, 1, {}, files=url)
    with pytest.raises(FileNotFoundError) as info:
        take(pipeline, 1)
    assert info.value.filename == url


def test_a_wrong_key_is_refused_and_not_shown(store, monkeypatch):
    wrong = base64.b64encode(b"canary" * 8).decode()
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", wrong)
    with pytest.raises(PermissionError) as info:
        build(readers.file, 1, {}, file_root="az://data/train")
    assert info.value.filename == "az://data/train"
    assert wrong not in str(info.getrepr(style="long"))
