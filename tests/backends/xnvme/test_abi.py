"""The layouts of libxnvme's structures, against the bindings on PyPI, which are generated."""

import json
import os
import subprocess
import sys

import pytest

from dali_storage.backends.xnvme.abi import COMMAND, CONTEXT, GEOMETRY, OPTS, OPTS_READ

LAYOUTS = """
import ctypes, json
from xnvme.ctypes_bindings import api
known = {
    "opts": api.xnvme_opts,
    "geo": api.xnvme_geo,
    "ctx": api.xnvme_cmd_ctx,
    "cpl": api.xnvme_spec_cpl,
    "common": api.xnvme_spec_cmd_common,
    "cmd": api.xnvme_spec_cmd_nvm,
}
print(json.dumps({name: {
    "size": ctypes.sizeof(kind),
    **{field[0]: getattr(kind, field[0]).offset for field in kind._fields_},
} for name, kind in known.items()}))
"""


def test_the_layouts_are_those_of_the_bindings_on_pypi(xnvme):
    pytest.importorskip("xnvme", reason="the package xnvme: pip install xnvme==0.7.5")
    if xnvme.version != "0.7.5":
        pytest.skip("the package xnvme works with libxnvme 0.7.5 only; this one is main")
    run = subprocess.run(
        [sys.executable, "-c", LAYOUTS],
        env=os.environ | {"XNVME_LIBRARY_PATH": xnvme.path},
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = json.loads(run.stdout)
    assert theirs["opts"]["size"] <= OPTS.itemsize
    assert theirs["opts"]["main_core"] == 84  # the last before what differs in main
    assert offsets(OPTS) == {name: theirs["opts"][name] for name in offsets(OPTS)}
    assert max(offsets(OPTS).values()) < OPTS_READ < 92
    assert GEOMETRY.itemsize == theirs["geo"]["size"]
    assert offsets(GEOMETRY) == {name: theirs["geo"][name] for name in offsets(GEOMETRY)}
    assert CONTEXT.itemsize == theirs["ctx"]["size"]
    assert offsets(CONTEXT) == {
        "head": theirs["ctx"]["cmd"],
        "state": theirs["ctx"]["cmd"],
        "result": theirs["ctx"]["cpl"],
        "status": theirs["ctx"]["cpl"] + theirs["cpl"]["status"],
        "device": theirs["ctx"]["dev"],
    }
    assert CONTEXT["head"].itemsize == theirs["cmd"]["size"] + theirs["cpl"]["size"]
    assert COMMAND.itemsize == CONTEXT["head"].itemsize
    fields = theirs["common"] | theirs["cmd"]
    for name in ("opcode", "cid", "nsid", "slba", "nlb"):
        assert offsets(COMMAND)[name] == fields[name]
    assert offsets(COMMAND)["completion"] == theirs["ctx"]["cpl"]
    assert sum(field[0].itemsize for field in (COMMAND.fields or {}).values()) == COMMAND.itemsize


def offsets(dtype):
    return {name: field[1] for name, field in (dtype.fields or {}).items()}
