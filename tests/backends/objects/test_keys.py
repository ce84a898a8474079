"""Keys that rotate: in a file, and of roles. What the servers get, and who gets no answer."""

import json
import os
import pickle
import subprocess
import sys
import threading
import time
import _thread

import numpy as np
import pytest

from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.backends.objects import keys as renewal
from dali_storage.backends.objects import roles as sources
from dali_storage.backends.objects.errors import NoKeysError
from dali_storage.contract.catalog import Catalog
from dali_storage.testing import read
from tests.kit.objects.client import environment, publish
from tests.kit.objects.roles import TOKEN, Keys, Roles, Store, serving
from tests.kit.paths import ROOT
from tests.kit.process import status_of_fork, wait_until

CONTENTS = [np.random.default_rng(sample).bytes(5000 + sample) for sample in range(60)]
ALL = np.arange(60)
ROLES = "instance", "ECS", "EKS", "web identity", "process"
VARIABLES = {"instance": "instance", "ECS": "RELATIVE_URI", "EKS": "FULL_URI"}


class World:
    """A store, a server of roles, and a home directory with a file of keys."""

    def __init__(self, store, roles, role_url, home, monkeypatch):
        self.store, self.roles, self.keys = store, roles, store.keys
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
        return ObjectStoreReader(self.catalog, transport=transport, retry=5, **options)

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
        yield World(store, roles, role_url, home, monkeypatch)
        roles.open.set()
        settled()


def settled():
    """Wait until no keys are being asked for: those that came are known."""
    wait_until(lambda: "dali_storage:keys" not in {it.name for it in threading.enumerate()})


@pytest.mark.parametrize("transport", ["own", "obstore"])
@pytest.mark.parametrize("source", ["file", *ROLES])
def test_keys_that_rotate_are_used_once_they_are_known_and_no_request_fails(
    world, source, transport
):
    world.patch.setattr(renewal, "_PAUSE", 0.0)  # keys are due at each batch
    world.roles.life = 200.0
    world.use(source)
    with world.reader(transport) as reader:
        for turn in range(1, 4):
            assert min(world.epoch(reader)) >= turn
            if source == "file":
                world.write()
                assert world.epoch(reader)  # notices
            settled()
            assert min(world.epoch(reader)) > turn
            settled()
            known = world.keys.newest
            assert min(world.epoch(reader)) >= known
            settled()
    assert not world.store.refused
    own, everyone = world.store.agents["dali_storage"], world.store.agents.total()
    # Obstore waits for the first keys of a role.
    assert everyone - own <= len(ALL) if transport == "own" else own == 0
