"""OpenStack Swift with its S3 interface, from its package alone: a real implementation for tests.

    python -m tests.kit.objects.swift DIRECTORY

It listens on a port of 127.0.0.1, prints its number, and ends when its standard input does. Two
processes: the proxy, and the servers of accounts, containers and objects (in memory). No
memcached, no ring-builder, no /etc/swift. `swift_client.Swift` starts it.
"""

import os
import socket
import sys
from array import array
from collections.abc import Callable
from typing import Any

import eventlet

eventlet.monkey_patch()
from eventlet import hubs, wsgi  # noqa: E402

ROLES = {"account": "account", "container": "container", "object": "mem_object"}
# s3api looks for an application of this very name; multipart uploads need slo.
PIPELINE = "catch_errors gatekeeper healthcheck cache listing_formats s3api tempauth bulk slo proxy"
PIPELINE = f"{PIPELINE}-server"
ACCOUNTS = {"tester": "testing", "other": "another"}
"""The secrets of the users of the account "test", who are test:tester and test:other."""

SETTINGS = """[DEFAULT]
swift_dir = {directory}
devices = {directory}/devices
mount_check = false
fsync_enabled = false
log_level = ERROR
log_address = /nonexistent
"""

PROXY = f"""[pipeline:main]
pipeline = {PIPELINE}
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
node_timeout = 60
conn_timeout = 5
[filter:cache]
paste.filter_factory = {__spec__.name}:cache_factory
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
max_bucket_listing = 1000
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = {ACCOUNTS["tester"]} .admin
user_test_other = {ACCOUNTS["other"]}
"""


class Cache(dict[str, Any]):
    """What Swift asks of memcached, for the one process of the proxy; nothing expires."""

    def get(self, key: str, raise_on_error: bool = False) -> Any:
        return super().get(key)

    def set(self, key: str, value: Any, **_: Any) -> None:
        self[key] = value

    def delete(self, key: str, **_: Any) -> None:
        self.pop(key, None)


def cache_factory(settings: dict[str, str], **_: str) -> Callable[[Any], Any]:
    """The filter `cache`, which is Swift's name for what offers memcached to the others."""
    cache = Cache()

    def wrap(app: Any) -> Any:
        def call(env: dict[str, Any], start_response: Any) -> Any:
            env["swift.cache"] = cache
            return app(env, start_response)

        return call

    return wrap


def configure(directory: str, ports: dict[str, int]) -> None:
    """Write the settings, and rings of one device."""
    from swift.common import storage_policy, utils
    from swift.common.ring.ring import RingData

    settings = SETTINGS.format(directory=directory)
    _write(
        f"{directory}/swift.conf",
        "[swift-hash]\nswift_hash_path_prefix = a\nswift_hash_path_suffix = b\n"
        "[storage-policy:0]\nname = one\ndefault = yes\n",
    )
    filters = [name for name in PIPELINE.split() if f"filter:{name}]" not in PROXY][:-1]
    more = "".join(f"[filter:{name}]\nuse = egg:swift#{name}\n" for name in filters)
    _write(f"{directory}/proxy.conf", settings + PROXY + more)
    for role, app in ROLES.items():
        pipeline = f"[pipeline:main]\npipeline = app\n[app:app]\nuse = egg:swift#{app}\n"
        _write(f"{directory}/{role}.conf", settings + pipeline)
        where = {"ip": "127.0.0.1", "port": ports[role]}
        copies = {f"replication_{name}": value for name, value in where.items()}
        device = {"id": 0, "region": 1, "zone": 1, "device": "d1", "weight": 1, "meta": ""}
        ring = RingData([array("H", [0] * 256)], [device | where | copies], 24)
        ring.save(f"{directory}/{role}.ring.gz")
    utils.SWIFT_CONF_FILE = f"{directory}/swift.conf"
    utils.HASH_PATH_PREFIX, utils.HASH_PATH_SUFFIX = b"a", b"b"
    storage_policy.reload_storage_policies()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def listen() -> Any:
    listener = eventlet.listen(("127.0.0.1", 0), backlog=1024)
    # Else each answer waits 40 ms for the acknowledgement of its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def serve(listener: Any, settings: str) -> None:
    import logging

    from swift.common.http_protocol import SwiftHttpProtocol
    from swift.common.wsgi import loadapp

    silent = logging.getLogger("silent")
    silent.addHandler(logging.NullHandler())
    silent.propagate = False
    app = loadapp(settings, global_conf={"log_name": "silent"})
    wsgi.server(listener, app, log=silent, log_output=False, protocol=SwiftHttpProtocol)


def main(directory: str) -> None:
    os.makedirs(f"{directory}/devices/d1")
    listeners = {role: listen() for role in ROLES}
    proxy = listen()
    configure(directory, {role: each.getsockname()[1] for role, each in listeners.items()})
    storage = os.fork() == 0
    hubs.use_hub()
    if storage:
        for role, listener in listeners.items():
            eventlet.spawn(serve, listener, f"{directory}/{role}.conf")
    else:
        eventlet.spawn(serve, proxy, f"{directory}/proxy.conf")
        print(proxy.getsockname()[1], flush=True)
    hubs.trampoline(sys.stdin.fileno(), read=True)  # until the test has gone
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
