"""Another DALI than the one that is installed: older, newer, missing, doubled, or with gaps.

`make test-dali` runs the tests of readers with older ones.
"""

import subprocess
import sys
from dataclasses import replace

import pytest

from dali_storage.order import Order, OrderOptions
from tests.kit.paths import ROOT

# What a user's program does: DALI's module first, as if it were another one.
BEGIN = """
import pickle, sys, warnings
import nvidia.dali
import nvidia.dali.plugin.base_iterator as base_iterator
from nvidia.dali import backend, fn, ops, pipeline, pipeline_def
Pipeline, Executor = pipeline.Pipeline, backend.Pipeline

def rename(owner, name):
    # Has DALI's own methods use another name.
    for value in vars(owner).values():
        code = getattr(value, "__code__", None)
        if code and name in code.co_names:
            names = tuple("new" + each if each == name else each for each in code.co_names)
            value.__code__ = code.replace(co_names=names)
    if name in vars(owner):
        setattr(owner, "new" + name, vars(owner)[name])
        delattr(owner, name)

def context(pipeline, data="{}"):
    made = backend.ExternalContextCheckpoint()
    made.pipeline_data = data
    return made

def a_pipeline(reader, **settings):
    @pipeline_def(batch_size=3, num_threads=1, device_id=None, enable_checkpointing=True)
    def define():
        return tuple(reader(name="Reader", files=["{file}"] * 9))
    return define(**settings)
"""


@pytest.fixture
def program(tmp_path):
    """Runs code in a process of its own; returns what it prints, errors at the end."""
    file = tmp_path / "0.jpg"
    file.write_bytes(b"0")

    def run(code, **environment):
        whole = BEGIN.replace("{file}", str(file)) + code
        words = [sys.executable, "-W", "default", "-c", whole]
        env = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "", **environment}
        done = subprocess.run(words, capture_output=True, text=True, env=env)
        return done.stdout + done.stderr

    return run


def test_the_order_of_dali_before_2_2_is_that_of_dali_2_0():
    """The labels that fn.readers.file of DALI 2.0.0 gave, with checkpoints and without."""
    of_old = OrderOptions(shuffle_after_epoch=True, shuffle_bits=32)
    for checkpointing, expected in (
        (False, ["12706453", "76201453", "42763510"]),
        (True, ["12706453", "24130567", "52017643"]),
    ):
        order = Order(8, 8, replace(of_old, checkpointing=checkpointing))
        assert ["".join(map(str, order.batch(epoch))) for epoch in range(3)] == expected


NUMBERED = "nvidia.dali.__version__ = {!r}\n"
READ = "from dali_storage.readers import file\n"
MISSING = "sys.modules['nvidia.dali'] = None\n"
DYNAMIC = """
from dali_storage.dynamic.readers import File
File(files=["x"]).next_epoch(4, capture=True)
"""
GAPS = """
rename(Pipeline, "_input_callbacks"), rename(Pipeline, "_init_pipeline_backend")
rename(Pipeline, "_ops"), rename(base_iterator._DaliBaseIterator, "_get_outputs")
del ops._OpCounter, Executor.ShareOutputs
"""
LACKS = "lacks names that dali_storage uses: Pipeline.ShareOutputs, "
LACKS += "Pipeline._init_pipeline_backend, Pipeline._input_callbacks, Pipeline._ops, "
LACKS += "_DaliBaseIterator._get_outputs, nvidia.dali.ops._OpCounter; install"
NO_PIPELINES = """
Pipeline._pipes = type("Never", (set,), {"add": lambda *_: None})()
from dali_storage.readers import file
a_pipeline(file).run()
"""
SAVES = """
new = Executor.GetSerializedCheckpoint
Pipeline._get_checkpoint = lambda it, **_: new(it._pipe, context(it))
from dali_storage.readers import file
a_pipeline(file).checkpoint()
"""
RESTORES = """
new = Executor.RestoreFromSerializedCheckpoint
restore = lambda it: it._checkpoint and new(it._pipe, it._checkpoint)
Pipeline._restore_state_from_checkpoint = restore
from dali_storage.readers import file
a_pipeline(file, checkpoint=a_pipeline(file).checkpoint()).run()
"""
OLD_CHECKPOINT = """
save = Executor.GetSerializedCheckpoint
from dali_storage.readers import file
saved = a_pipeline(file)
saved.build()
made = context(saved, pickle.dumps({"iter": 0, "epoch_idx": 0}))
a_pipeline(file, checkpoint=save(saved._pipe, made)).build()
"""
OTHER_ENGINE = """
import functools
from dali_storage.readers import file
shuffled = functools.partial(file, shuffle_after_epoch=True)
saved = a_pipeline(shuffled).checkpoint().replace(b'"shuffle_bits": 64', b'"shuffle_bits": 32')
a_pipeline(shuffled, checkpoint=saved).build()
"""
LONG, NOT_OLD = pytest.mark.long, pytest.mark.dali("2.2", "which it takes for another one")
REFUSED = {
    "old": (NUMBERED.format("1.52.0") + READ, "dali_storage needs DALI 1.53 or newer, found 1.52"),
    "missing": (MISSING + READ, "dali_storage needs NVIDIA DALI, which is not installed: pip "),
    "gaps": (GAPS + READ, LACKS),
    "no dynamic": (NUMBERED.format("2.1.0") + DYNAMIC, "needs DALI 2.2 or newer, found 2.1", LONG),
    "no capture": (NUMBERED.format("2.2.0") + DYNAMIC, "needs DALI 2.3 or newer, found 2.2", LONG),
    "pipelines": (NO_PIPELINES, "does not register its pipelines", LONG),
    "saving": (SAVES, "made a checkpoint without dali_storage's readers", LONG),
    "restoring": (RESTORES, "restored a checkpoint without this reader's position", LONG),
    "before 2.0": (OLD_CHECKPOINT, "was made with DALI before 2.0, but this is", LONG, NOT_OLD),
    "32 bits": (OTHER_ENGINE, "with a shuffle_after_epoch of 32 bits, but this", LONG, NOT_OLD),
}
"""A program, what it prints, and marks: imports take seconds."""


@pytest.mark.parametrize(
    ("code", "message"),
    [pytest.param(*row[:2], marks=row[2:], id=name) for name, row in REFUSED.items()],
)
def test_a_dali_that_does_not_fit_is_refused_by_name(program, code, message):
    assert message in program(code)


def test_two_packages_of_dali_in_one_directory_are_refused_by_name(program, tmp_path):
    for number, cuda in (("2.3.0", "110"), ("2.4.0", "130")):
        path = tmp_path / f"nvidia_dali_cuda{cuda}-{number}.dist-info"
        path.mkdir()
        (path / "METADATA").write_text(f"Name: nvidia-dali-cuda{cuda}\nVersion: {number}\n")
    printed = program(READ)
    assert "nvidia-dali-cuda110 2.3.0" in printed
    assert "uninstall both" in printed


NEWER = """
nvidia.dali.__version__ = "2.99.0"
theirs = fn.readers.file
fn.readers.file = lambda **given: theirs(**given | {change})
from dali_storage import readers
for _ in range(2):
    a_pipeline(readers.file).run()
print("finished")
"""


@NOT_OLD
@LONG
def test_a_newer_dali_with_the_same_order_is_named_in_one_warning(program):
    printed = program(NEWER.replace("{change}", "{}"))
    assert printed.count("UntestedDali: DALI 2.99.0 is newer than 2.4") == 1
    assert "finished" in printed


@NOT_OLD
@LONG
def test_a_newer_dali_with_another_order_is_refused_unless_the_user_allows_it(program):
    code = NEWER.replace("{change}", "{'seed': 4}")
    printed = program(code)
    differs = "random_shuffle differs; random_shuffle, seed, initial_fill differs; "
    differs += "a random operator behind the reader differs"
    assert f"Compared with fn.readers.file: {differs}. Either install DALI" in printed
    assert "finished" not in printed
    allowed = program(code, DALI_STORAGE_UNTESTED_DALI="1")
    assert f"{differs}. DALI_STORAGE_UNTESTED_DALI=1 allows the differences" in allowed
    assert "finished" in allowed
