"""URLs, keys, endpoints and credentials: what arrives at the server."""

import errno
import os
import pickle
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dali_storage import Catalog
from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.backends.objects import store as stores
from dali_storage.backends.objects.errors import mapped, retryable
from dali_storage.backends.objects.store import Stores
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.testing import read
from tests.kit.objects.client import KEY_ID, SECRET
from tests.kit.paths import ROOT
from tests.kit.process import status_of_fork


def get(url, stores=None):
    url = os.fsencode(url)
    store, key = (stores or Stores()).locate(url)
    try:
        return bytes(store.get(key).bytes())
    except Exception as error:
        raise mapped(error, url) from None


def only(server):
    """The one request since the last call."""
    (request,) = server.log(clear=True)
    return request


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@given(key=st.text(st.characters(codec="utf-8"), min_size=1, max_size=12))
@example("a%2Fb")
@example("%41")
@example("a?b#c")
@example("a+b &=c")
@example("~'()*!@:$,;[]{}|\\^`\"<>é")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_keys_arrive_as_they_are_written(server, scheme, key):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DALI_GCS_ENDPOINT_URL", server.url)
        patch.setenv("DALI_GCS_ANONYMOUS", "1")
        url = f"{scheme}://data/{key}"
        parts = key.split("/")
        if {"", ".", ".."} & {*parts} or any(c < " " or c == "\x7f" for c in key):
            with pytest.raises(ValueError) as caught:
                Stores().locate(url.encode())
            assert repr(url) in str(caught.value)
            assert "rename" in str(caught.value)
        else:
            server.put(f"data/{key}", key.encode())
            assert get(url) == key.encode()
            assert only(server).key == f"data/{key}"


def test_a_url_of_the_web_is_quoted(server):
    server.put("data/a b%é.jpg", b"yes")
    for name in ("a%20b%25%C3%A9.jpg", "a b%é.jpg"):
        assert get(f"{server.url}/data/{name}") == b"yes"
    assert [request.headers.get("authorization") for request in server.log()] == [None, None]
    with pytest.raises(ValueError, match=r"/data/a' has a query, a .*; remove it") as caught:
        get(f"{server.url}/data/a?signature=canary")
    assert "canary" not in str(caught.value)


def test_a_bucket_is_opened_once(server, monkeypatch):
    opened, start = [], Barrier(8)

    def count(bucket, **options):
        opened.append(bucket)
        return stores.HTTPStore(server.url, client_options={"allow_http": True})

    monkeypatch.setattr(stores, "S3Store", count)
    made = Stores()

    def locate(number):
        start.wait()
        return id(made.locate(b"s3://b%d/x" % (number % 2))[0])

    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(locate, range(8))]
    assert sorted(opened) == ["b0", "b1"]
    assert found == found[:2] * 4
    assert found[0] != found[1]


def test_client_options_reach_obstore(server):
    server.put("data/x", b"yes")
    proxied = Stores(
        endpoint="http://store.invalid",
        client_options={"proxy_url": server.url, "user_agent": "us"},
    )
    assert get("s3://data/x", proxied) == b"yes"
    request = only(server)
    assert request.headers["host"] == "store.invalid"
    assert request.headers["user-agent"] == "us"


def key_id(request):
    """Whose key signed a request."""
    return request.headers["authorization"].partition("Credential=")[2].partition("/")[0]


def region_of(request):
    return request.headers["authorization"].split("/")[2]


@pytest.fixture
def home(server, home, monkeypatch):
    """It is emptied after the server's fixture has filled the environment."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server.put("data/x", b"yes")
    return home


def test_endpoints_by_the_environment(server, home, monkeypatch):
    (home / "config").write_text("[default]\nendpoint_url = http://config.invalid\n")
    stores = {
        "config.invalid": None,
        "s3.invalid": "AWS_ENDPOINT_URL_S3",
        "general.invalid": "AWS_ENDPOINT_URL",
    }
    for host, variable in stores.items():
        if variable:
            monkeypatch.setenv(variable, f"http://{host}")
        get("s3://data/x", Stores(anonymous=True, client_options={"proxy_url": server.url}))
        assert only(server).headers["host"] == host
    chosen = Stores(
        anonymous=True, endpoint="http://me.invalid", client_options={"proxy_url": server.url}
    )
    get("s3://data/x", chosen)
    assert only(server).headers["host"] == "me.invalid"
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT", "http://of-obstore.invalid")  # not of DALI
    get("s3://data/x", Stores(anonymous=True, client_options={"proxy_url": server.url}))
    assert only(server).headers["host"] == "of-obstore.invalid"
    assert b"of-obstore" in Stores().place()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    with pytest.raises(ValueError, match="AWS_ENDPOINT_URL must be like http://host:port"):
        get("s3://data/x")


def test_the_region_signs(server, home, monkeypatch):
    text = "[default]\nregion = of-profile\naws_access_key_id = ME\naws_secret_access_key = S\n"
    (home / "config").write_text(text)

    def region(**options):
        get("s3://data/x", Stores(endpoint=server.url, **options))
        return region_of(only(server))

    assert region() == "of-profile"
    monkeypatch.setenv("AWS_REGION", "of-region")
    assert region() == "of-region"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "of-default")
    assert region() == "of-default"
    assert region(region="of-option") == "of-option"


def test_keys_of_the_environment_come_before_those_of_a_profile(server, home, monkeypatch):
    (home / "credentials").write_text(
        "[default]\naws_access_key_id = FILE\naws_secret_access_key = S\naws_session_token = T\n"
        "[other]\naws_access_key_id=OTHER\naws_secret_access_key=S\n"
        "[twice]\naws_access_key_id=SHARED\naws_secret_access_key=S\n"
    )
    (home / "config").write_text(
        "[profile both]\naws_access_key_id=CONFIG\naws_secret_access_key=S\n"
        "[profile twice]\naws_access_key_id=CONFIG\naws_secret_access_key=S\n"
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    get("s3://data/x")
    request = only(server)
    assert (key_id(request), request.headers["x-amz-security-token"]) == ("FILE", "T")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of somebody else")
    for name, who in (("other", "OTHER"), ("both", "CONFIG"), ("twice", "SHARED")):
        monkeypatch.setenv("AWS_PROFILE", name)
        get("s3://data/x")
        request = only(server)
        assert key_id(request) == who
        assert "x-amz-security-token" not in request.headers
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
    with pytest.raises(ValueError, match="only AWS_ACCESS_KEY_ID is set; set both"):
        get("s3://data/x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "S")
    get("s3://data/x")
    assert key_id(only(server)) == "ENVIRONMENT"
    get("s3://data/x", Stores(anonymous=True))
    assert "authorization" not in only(server).headers


DALI = """
from nvidia.dali import fn
from tests.kit.dali import build
build(fn.readers.file, 1, files=["s3://data/x"]).run()
"""


def test_dali_asks_the_same_server_with_the_same_key_and_region(server, home, monkeypatch):
    keys = "aws_access_key_id = {0}\naws_secret_access_key = S\nregion = {0}\n"
    (home / "credentials").write_text("[a]\n" + keys.format("A") + "[b]\n" + keys.format("B"))
    (home / "config").write_text("[profile a]\nendpoint_url = http://127.0.0.1:1\n")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    for pair in ("PROFILE", "REGION"):
        monkeypatch.setenv(f"AWS_{pair}", "b")
        monkeypatch.setenv(f"AWS_DEFAULT_{pair}", "a")
    subprocess.run([sys.executable, "-W", "ignore", "-c", DALI], check=True, cwd=ROOT)
    theirs = {(key_id(request), region_of(request)) for request in server.log(clear=True)}
    get("s3://data/x")
    assert theirs == {(key_id(request := only(server)), region_of(request))} == {("A", "a")}


def test_dali_reads_without_a_signature_where_this_is_an_error_here(server, home, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "half a pair")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    subprocess.run([sys.executable, "-W", "ignore", "-c", DALI], check=True, cwd=ROOT)
    theirs = server.log(clear=True)
    assert theirs
    assert not any("authorization" in request.headers for request in theirs)
    with pytest.raises(ValueError, match=r"no profile 'nobody' .*; correct AWS_PROFILE"):
        get("s3://data/x")
    monkeypatch.delenv("AWS_PROFILE")
    with pytest.raises(ValueError, match="only AWS_ACCESS_KEY_ID is set"):
        get("s3://data/x")
    assert server.log() == []


def test_no_credentials(server, home, monkeypatch):
    with pytest.raises(PermissionError, match="no credentials were found") as caught:
        get("s3://data/x")
    assert caught.value.filename == "s3://data/x"
    assert caught.value.errno == errno.EACCES
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://169.254.169.254")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    asked = Stores(client_options={"connect_timeout": "200ms"})
    with pytest.raises(PermissionError, match="no credentials were found"):
        get("s3://data/x", asked)
    store, key = asked.locate(b"s3://data/x")
    with pytest.raises(Exception) as failed:
        store.get(key)
    assert retryable(failed.value)  # of the machine's credentials, which are renewed
    assert not retryable(failed.value, reached=False)
    assert server.log() == []
    catalog = Catalog.from_names([b"s3://data/x"], [0])
    with ObjectStoreReader(catalog, anonymous=True) as reader:
        assert read(reader, np.array([0]), catalog) == [b"yes"]
    remote = ObjectStoreReader.remote(anonymous=True)
    assert remote.contents([(b"s3://data/x", 0, None)]) == [b"yes"]
    assert not any("authorization" in request.headers for request in server.log(clear=True))
    with pytest.raises(ValueError, match=r"check the variables .* AZURE_STORAGE_ACCOUNT_NAME"):
        Stores().locate(b"az://data/x")


def test_a_provider_that_fails_later(server, monkeypatch):
    def expired():
        raise RuntimeError("canary")

    monkeypatch.setattr(stores, "signing", lambda *_: {"credential_provider": expired})
    store, key = Stores().locate(b"s3://data/x")
    with pytest.raises(Exception) as caught:
        store.get(key)
    error = mapped(caught.value, b"s3://data/x")
    assert isinstance(error, PermissionError)
    assert "canary" not in str(error)
    assert retryable(caught.value)  # it may have been the network
    assert not retryable(caught.value, reached=False)


def test_half_a_pair_in_a_profile_is_in_no_traceback(home, monkeypatch):
    (home / "credentials").write_text(
        f"[default]\naws_secret_access_key = {SECRET}\ncredential_process = false\n"
    )
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(BackendUnavailable) as caught:
        get("s3://data/x")
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert SECRET not in "".join(shown.format())


def test_a_broken_file_of_profiles_is_named_but_not_shown(home):
    (home / "credentials").write_text(f"aws_secret_access_key = {SECRET}\n")
    with pytest.raises(ValueError, match="credentials' is not an AWS configuration file") as caught:
        Stores().locate(b"s3://data/x")
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


def test_boto3_gets_what_a_process_prints(server, home, monkeypatch):
    keys = '{"Version": 1, "AccessKeyId": "PROCESS", "SecretAccessKey": "S", "SessionToken": "T"}'
    (home / "keys.json").write_text(keys)
    text = f"[profile work]\ncredential_process = cat {home / 'keys.json'}\nregion = r\n"
    (home / "config").write_text(text)
    monkeypatch.setenv("AWS_PROFILE", "work")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "boto3", None)
        with pytest.raises(BackendUnavailable, match=r"has credential_process, .*boto3") as caught:
            get("s3://data/x")
        assert caught.value.remedy == "pip install boto3"
    pytest.importorskip("boto3", reason="no boto3: pip install boto3")
    assert get("s3://data/x") == b"yes"
    request = only(server)
    assert (key_id(request), request.headers["x-amz-security-token"]) == ("PROCESS", "T")
    (home / "keys.json").write_text("{}")
    with pytest.raises((OSError, ValueError), match="credential"):
        get("s3://data/x")


def test_stores_show_and_keep_no_secret(server):
    made = Stores()
    made.locate(b"s3://data/x")
    assert SECRET not in repr(made) + str(made)
    with pytest.raises(TypeError, match="cannot pickle") as caught:
        pickle.dumps(made)
    assert SECRET not in str(caught.value)
    assert KEY_ID not in repr(vars(made))


def test_a_fork_of_a_process_that_has_asked_is_refused_before_it_hangs(server):
    server.put("data/x", b"yes")
    assert get("s3://data/x") == b"yes"
    assert status_of_fork(lambda: get("s3://data/x")) == 17
