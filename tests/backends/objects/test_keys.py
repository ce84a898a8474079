"""Keys that rotate: in a file, and of roles. What the servers get, and who gets no answer."""

import _thread
import json
import os
import pickle
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dali_storage import readers
from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.backends.objects import credentials
from dali_storage.backends.objects import keys as renewal
from dali_storage.backends.objects import roles as sources
from dali_storage.backends.objects.errors import NoKeysError
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.testing import read
from tests.kit.objects.client import environment, publish
from tests.kit.objects.roles import ACCOUNT, ACCOUNT_KEY, SHARED, TOKEN, Keys, Roles, Store, serving
from tests.kit.paths import ROOT
from tests.kit.process import status_of_fork, threads, wait_until
from tests.kit.tiers import by_tier

CONTENTS = [np.random.default_rng(sample).bytes(5000 + sample) for sample in range(60)]
ALL = np.arange(60)
FULL = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
ROLES = "instance", "ECS", "EKS", "web identity", "process", "Google"


class World:
    """A store, a server of roles, and a home directory with a file of keys."""

    def __init__(self, store, url, roles, role_url, home, monkeypatch):
        self.store, self.store_url, self.roles, self.keys = store, url, roles, store.keys
        self.home, self.url, self.patch = home, role_url, monkeypatch
        self.files = Catalog.from_names([b"%d" % at for at in range(60)], range(60), b"s3://data")
        self.catalog = publish(lambda *_: None, self.files, CONTENTS)

    def use(self, source):
        """Get keys from a source, of those in the file "credentials" by default."""
        set_ = self.patch.setenv
        (self.home / "token").write_text(f"{TOKEN}\n")
        if source == "file":
            self.write()
        elif source == "process":
            pytest.importorskip("boto3", reason="no boto3: pip install boto3")
            script = "import sys, urllib.request as u, json; r = u.Request(*sys.argv[1:2])\n"
            script += f"r.add_header('Authorization', {TOKEN!r}); a = json.load(u.urlopen(r))\n"
            script += "print(json.dumps(a | {'Version': 1, 'SessionToken': a['Token']}))"
            (self.home / "process.py").write_text(script)
            command = f"{sys.executable} {self.home / 'process.py'} {self.url}/keys"
            (self.home / "config").write_text(f"[default]\ncredential_process = {command}\n")
        elif source == "instance":
            self.patch.delenv("AWS_EC2_METADATA_DISABLED")
            set_("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{self.url}/")
        elif source == "Google":
            pytest.importorskip("google.auth", reason="no google-auth: pip install google-auth")
            pytest.importorskip("requests", reason="no requests: pip install requests")
            command = ["openssl", "genpkey", "-algorithm", "RSA"]
            key = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            account = {"private_key": key, "private_key_id": "1", "client_email": "a@b"}
            account |= {"type": "service_account", "token_uri": f"{self.url}/token"}
            (self.home / "account").write_text(json.dumps(account))
            set_("GOOGLE_APPLICATION_CREDENTIALS", str(self.home / "account"))
            set_("DALI_GCS_ENDPOINT_URL", self.store_url)
            self.catalog = replace(self.catalog, root=b"gs://data")
        elif source == "ECS":
            self.patch.setattr(sources, "_CONTAINER", self.url)
            set_("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials")
            set_("AWS_CONTAINER_AUTHORIZATION_TOKEN", f"{TOKEN}\n")
        elif source == "EKS":
            set_("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{self.url}/v1")
            set_("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(self.home / "token"))
        else:
            set_("AWS_ENDPOINT_URL_STS", self.url)
            set_("AWS_WEB_IDENTITY_TOKEN_FILE", str(self.home / "token"))
            set_("AWS_ROLE_ARN", "arn:a")

    def write(self, age=60.0, text=None):
        """Write new keys, or a text, to the file of keys, as if some seconds ago."""
        new = self.keys.new()
        made = f"aws_access_key_id = {new['AccessKeyId']}\naws_session_token = {new['Token']}\n"
        made += f"[default]\n{made}aws_secret_access_key = {new['SecretAccessKey']}\n"
        (self.home / "new").write_text(made[made.index("[") :] if text is None else text)
        os.utime(self.home / "new", (time.time() - age,) * 2)
        (self.home / "new").rename(self.home / "credentials")

    def reader(self, transport="own", **options):
        return ObjectStoreReader(self.catalog, transport=transport, **options)

    def epoch(self, reader):
        """Read all samples; the numbers of the keys that were used."""
        self.store.used.clear()
        assert read(reader, ALL, self.catalog) == CONTENTS
        return {*self.store.used}


@pytest.fixture
def world(home, monkeypatch):
    keys = Keys()
    objects = {f"/data/{at}": content for at, content in enumerate(CONTENTS)}
    store, roles = Store(keys, objects), Roles(keys)
    with serving(store) as url, serving(roles) as role_url:
        for name, value in environment(url, "", "").items():
            if "FILE" not in name:
                monkeypatch.setenv(name, value)
        yield World(store, url, roles, role_url, home, monkeypatch)
        roles.open.set()
        settled()


def settled():
    """Wait until no keys are being asked for: those that came are known."""
    wait_until(lambda: not any(it.name == "dali_storage:keys" for it in threads()))


@pytest.mark.parametrize("transport", ["own", "obstore"])
@pytest.mark.parametrize("source", ["file", *ROLES])
def test_keys_that_rotate_are_used_once_they_are_known_and_no_request_fails(
    world, source, transport
):
    world.patch.setattr(renewal, "_PAUSE", 0.0)  # keys are due at each batch
    world.roles.life = 200.0
    world.use(source)
    with world.reader(transport) as reader:
        for _ in range(by_tier(2, 4)):
            world.epoch(reader)  # has keys asked for
            settled()
            known = world.keys.newest
            assert min(world.epoch(reader)) >= known
            settled()
            if source == "file":
                world.write()
    assert known >= by_tier(2, 4)
    assert not world.store.refused
    own, everyone = world.store.agents["dali_storage"], world.store.agents.total()
    # Obstore waits for the first keys of a role.
    assert everyone - own <= len(ALL) if transport == "own" else own == 0


@pytest.mark.parametrize("transport", ["own", "obstore"])
def test_a_file_of_keys_is_looked_at_once_more_when_the_store_refuses_them(world, transport):
    world.use("file")
    with world.reader(transport) as reader:
        assert world.epoch(reader) == {1}
        world.keys.revoke()
        world.write(age=0)  # perhaps half of it, if the store did not refuse the old keys
        assert 2 in world.epoch(reader)
        assert world.epoch(reader) == {2}
        world.keys.revoke()
        with pytest.raises(PermissionError, match="the credentials have expired; renew them"):
            world.epoch(reader)
        world.write(age=0)
        world.epoch(reader)
        assert world.epoch(reader) == {3}


@pytest.mark.parametrize("transport", ["own", "obstore"])
def test_a_role_is_asked_again_when_the_store_refuses_its_keys(world, transport):
    world.use("ECS")
    with world.reader(transport) as reader:
        assert world.epoch(reader) == {1}
        world.keys.revoke()
        assert 2 in world.epoch(reader)
        assert world.epoch(reader) == {2} == {world.roles.asked.total()}


DELEGATION_KEY = f"/{ACCOUNT}?restype=service&comp=userdelegationkey"


@pytest.mark.parametrize("transport", ["own", "obstore"])
@pytest.mark.parametrize("given", ["ACCOUNT_KEY", "TOKEN", "SAS_TOKEN"])
def test_blobs_are_read_by_all_credentials_of_azure_without_a_request_for_each(
    world, given, transport
):
    values = {"ACCOUNT_NAME": ACCOUNT, "ENDPOINT": f"{world.store_url}/{ACCOUNT}", "TOKEN": TOKEN}
    values |= {"ACCOUNT_KEY": ACCOUNT_KEY, "SAS_TOKEN": f"?{SHARED}"}
    for name in ("ACCOUNT_NAME", "ENDPOINT", given):
        world.patch.setenv(f"AZURE_STORAGE_{name}", values[name])
    world.catalog = replace(world.catalog, root=b"az://data")
    with world.reader(transport) as reader:
        for _ in range(3):
            world.epoch(reader)
    asked = {"dali_storage" if transport == "own" else "object_store": 3 * len(ALL)}
    if given == "TOKEN" and transport == "own":
        asked[DELEGATION_KEY] = 1
    assert (world.store.agents, world.store.refused) == (asked, [])


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"AZURE_STORAGE_TOKEN": "wrong"}, "can use these credentials of az://"),
        ({"AZURE_STORAGE_SAS_TOKEN": "a=ü"}, "can use these credentials of az://"),
        ({"AZURE_ENCRYPTION_KEY": "canary"}, "supports AZURE_ENCRYPTION_KEY"),
        ({"GOOGLE_SKIP_SIGNATURE": "true"}, "supports GOOGLE_SKIP_SIGNATURE"),
    ],
)
def test_credentials_that_only_obstore_knows_are_named(world, variables, says):
    variables = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, **variables}
    variables |= {"AZURE_STORAGE_ENDPOINT": world.store_url}
    for name, value in variables.items():
        world.patch.setenv(name, value)
    root = b"gs://data" if "GOOGLE" in says else b"az://data"
    world.catalog = replace(world.catalog, root=root)
    with world.reader() as reader, pytest.raises(BackendUnavailable, match=says):
        world.epoch(reader)


HALF = "[default]\naws_access_key_id = AKID2\naws_secret_access_key = canary1\n"


@pytest.mark.parametrize(
    ("text", "age"),
    [(HALF, 0), (HALF[:40], 60), (HALF[10:], 60), ("[default]\n", 60), ("\xff", 60)],
)
def test_a_file_that_is_being_written_changes_no_keys(world, text, age):
    world.patch.setattr(renewal, "_PAUSE", 0.0)
    world.use("file")
    with world.reader() as reader:
        assert world.epoch(reader) == {1}
        world.write(age, text)
        for _ in range(2):
            assert world.epoch(reader) == {1}
            settled()
        world.write()
        world.epoch(reader)
        settled()
        assert world.epoch(reader) == {3}


def test_a_file_that_is_half_written_at_the_start_is_waited_for(world):
    world.use("file")
    whole = (world.home / "credentials").read_text()
    world.write(age=0, text=whole[:-3])

    def write_the_rest(_):
        (world.home / "credentials").write_text(whole)
        os.utime(world.home / "credentials", (0, 0))

    now = SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=write_the_rest)
    world.patch.setattr(credentials, "time", now)
    with world.reader() as reader:
        assert world.epoch(reader) == {1}
    assert not world.store.refused


FAULTS = {
    "500": "status 500",
    "302": "status 302",
    "canary": "a malformed URL, token or answer",
    '{"AccessKeyId": "canary\\n", "SecretAccessKey": "s", "Token": "t", "Expiration": "x"}': "malf",
    "hangs": "TimeoutError",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_valid_keys_are_used_until_they_end_whatever_the_source_does(world, fault):
    world.patch.setattr(renewal, "_PAUSE", 0.0)
    world.roles.life = 200.0
    world.use("EKS")
    with world.reader(retry=0) as reader:
        world.epoch(reader)
        settled()
        known = world.keys.newest
        if fault == "hangs":
            world.patch.setattr(sources, "_SECONDS", 0.1)
            world.roles.open.clear()
        else:
            world.roles.fault = fault
        for _ in range(2):
            assert world.epoch(reader) == {known}
        later = SimpleNamespace(time=lambda: time.time() + 3600, monotonic=time.monotonic)
        world.patch.setattr(renewal, "time", later)
        says = f"by {FULL}: .*{FAULTS[fault]}.*; check the role"
        with pytest.raises(PermissionError, match=says) as caught:
            world.epoch(reader)
    assert "canary" not in str(caught.value)


def test_keys_that_end_in_a_second_are_enough(world):
    world.roles.life = 1.2
    world.use("ECS")
    with world.reader() as reader:
        while world.keys.newest < 3:
            world.epoch(reader)


@pytest.mark.parametrize("transport", ["own", "obstore"])
def test_a_clock_that_is_an_hour_off_is_named(world, transport):
    world.use("web identity")
    world.store.ahead = 3600.0
    clock = pytest.raises(PermissionError, match="this machine's clock")
    with world.reader(transport) as reader, clock:
        world.epoch(reader)
    world.store.ahead, world.roles.life = 0.0, -10.0
    with world.reader(transport) as reader, clock:
        world.epoch(reader)
    assert not world.store.used  # with keys that have ended


def test_a_store_that_refuses_all_keys_does_not_flood_their_source(world):
    world.patch.setattr(renewal, "_PAUSE", 1000.0)
    world.use("instance")
    world.store.closed = True
    with world.reader() as reader:
        for _ in range(5):
            with pytest.raises(PermissionError, match="access is denied"):
                world.epoch(reader)
    assert world.roles.asked.total() <= 3 * 2


def test_ctrl_c_while_keys_are_asked_for(world):
    world.patch.setattr(sources, "_SECONDS", 60.0)
    world.use("instance")
    world.roles.open.clear()

    def interrupt():
        wait_until(lambda: world.roles.asked)
        _thread.interrupt_main()

    urls = [os.fsdecode(world.catalog.path(sample)) for sample in ALL.tolist()]
    with readers.batches(readers.file, files=urls, batch_size=60) as batches:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            next(iter(batches))
        thread.join()
        world.roles.open.set()
        assert [it.tobytes() for it in next(iter(batches)).data] == CONTENTS


def test_a_fork_asks_for_keys_by_a_thread_of_its_own(world):
    parent, asked = os.getpid(), threading.Event()
    lease = renewal.TimedKeys.of("a", "b", None)

    def fetch(refused):
        asked.set()
        while os.getpid() == parent and not world.roles.asked:
            time.sleep(0.01)
        return lease

    keys = renewal.Keys(fetch)
    assert keys.current() is None
    asked.wait()
    assert status_of_fork(lambda: os._exit(keys()["access_key_id"] != "a")) == 0
    world.roles.asked["the end"] += 1
    assert keys()["secret_access_key"] == "b"
    with pytest.raises(TypeError, match="cannot pickle") as caught:
        pickle.dumps(renewal.Keys(print, lease))
    assert "'b'" not in repr(keys) + str(caught.value)


def test_keys_of_the_environment_start_no_thread_and_a_fork_between_two_epochs_is_refused(world):
    new = world.keys.new()
    for name, key in (("ACCESS_KEY_ID", "AccessKeyId"), ("SECRET_ACCESS_KEY", "SecretAccessKey")):
        world.patch.setenv(f"AWS_{name}", new[key])
    world.patch.setenv("AWS_SESSION_TOKEN", new["Token"])
    world.patch.setattr(renewal, "start_thread", None)
    with world.reader() as reader:
        assert world.epoch(reader) == {1}

        def child():
            with pytest.raises(RuntimeError, match="before this process was forked"):
                world.epoch(reader)

        assert status_of_fork(child) == 0
        assert world.epoch(reader) == {1}


HANGS = """
import threading
from dali_storage.backends.objects.keys import Keys
asked = threading.Event()
keys = Keys(lambda refused: (asked.set(), threading.Event().wait()))
assert keys.current() is None
asked.wait()
"""


def test_a_source_that_hangs_does_not_keep_the_process(world):
    subprocess.run([sys.executable, "-c", HANGS], check=True, cwd=ROOT)
    world.patch.setattr(renewal, "_LONGEST", 0.01)
    with pytest.raises(NoKeysError, match="does not answer"):
        world.roles.open.clear()
        renewal.Keys(lambda refused: world.roles.open.wait() and None)()


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({FULL: "http://canary.example/"}, f"{FULL} must use TLS"),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/canary"}, "but AWS_ROLE_ARN is not"),
        (
            {"AWS_WEB_IDENTITY_TOKEN_FILE": "/nonexistent", "AWS_ROLE_ARN": "arn:a"},
            "by AWS_WEB_IDENTITY_TOKEN_FILE: FileNotFoundError; check the role",
        ),
        ({FULL: "http://127.0.0.1:1/"}, f"by {FULL}: ConnectionRefusedError"),
        (
            {FULL: "http://127.0.0.1:1/", "AWS_CONTAINER_AUTHORIZATION_TOKEN": "canary\r\nA: b"},
            f"by {FULL}: a malformed URL, token or answer",
        ),
    ],
)
def test_a_role_that_is_configured_wrongly_is_named_by_its_variable(world, variables, says):
    for name, value in variables.items():
        world.patch.setenv(name, value)
    with (
        world.reader() as reader,
        pytest.raises((ValueError, PermissionError), match=says) as caught,
    ):
        world.epoch(reader)
    assert "canary" not in str(caught.value)


def test_sts_is_trusted_by_the_given_authority_only(world, certificate):
    world.use("web identity")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    sts = Roles(world.keys)
    sts.socket = context.wrap_socket(sts.socket, server_side=True)
    with serving(sts) as url:
        world.patch.setenv("AWS_ENDPOINT_URL_STS", url.replace("http:", "https:"))
        with world.reader(client_options={"root_certificate": certificate[0].read_bytes()}) as it:
            assert world.epoch(it) == {1}
        with world.reader() as it, pytest.raises(PermissionError, match="SSLCertVerificationError"):
            world.epoch(it)
