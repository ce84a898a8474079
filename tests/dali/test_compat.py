"""Another DALI than the one that is installed: older, newer, missing, doubled, or with gaps.

`make test-dali` runs the tests of readers with older ones.
"""

import subprocess
import sys
import textwrap

import numpy as np
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
        whole = BEGIN.replace("{file}", str(file)) + textwrap.dedent(code)
        done = subprocess.run(
            [sys.executable, "-W", "default", "-c", whole],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "", **environment},
        )
        return done.stdout + done.stderr

    return run


def test_the_order_of_dali_before_2_2_is_that_of_dali_2_0():
    """The labels that fn.readers.file of DALI 2.0.0 gave, with checkpoints and without."""
    options = {"shuffle_after_epoch": True, "shuffle_bits": 32}
    order = Order(8, 8, OrderOptions(**options))
    assert np.concatenate([order.batch(epoch) for epoch in range(3)]).tolist() == [
        *(1, 2, 7, 0, 6, 4, 5, 3),
        *(7, 6, 2, 0, 1, 4, 5, 3),
        *(4, 2, 7, 6, 3, 5, 1, 0),
    ]
    order = Order(8, 8, OrderOptions(**options, checkpointing=True))
    assert np.concatenate([order.batch(epoch) for epoch in range(3)]).tolist() == [
        *(1, 2, 7, 0, 6, 4, 5, 3),
        *(2, 4, 1, 3, 0, 5, 6, 7),
        *(5, 2, 0, 1, 7, 6, 4, 3),
    ]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "nvidia.dali.__version__ = '1.52.0'",
            "dali_storage needs DALI 1.53 or newer, found 1.52.0",
        ),
        (
            "sys.modules['nvidia.dali'] = None",
            "ModuleNotFoundError: dali_storage needs NVIDIA DALI, which is not installed: pip ",
        ),
        (
            "rename(Pipeline, '_input_callbacks'); rename(Pipeline, '_ops'); del ops._OpCounter; "
            "rename(Pipeline, '_init_pipeline_backend'); del Executor.ShareOutputs; "
            "rename(base_iterator._DaliBaseIterator, '_get_outputs')",
            "lacks names that dali_storage uses: Pipeline.ShareOutputs, "
            "Pipeline._init_pipeline_backend, Pipeline._input_callbacks, Pipeline._ops, "
            "_DaliBaseIterator._get_outputs, nvidia.dali.ops._OpCounter; install",
        ),
    ],
    ids=["old", "missing", "gaps"],
)
def test_a_dali_that_does_not_fit_is_refused_by_name(program, code, message):
    assert message in program(f"{code}\nfrom dali_storage.readers import file")


def test_two_packages_of_dali_in_one_directory_are_refused_by_name(program, tmp_path):
    for number, cuda in (("2.3.0", "110"), ("2.4.0", "130")):
        path = tmp_path / f"nvidia_dali_cuda{cuda}-{number}.dist-info"
        path.mkdir()
        (path / "METADATA").write_text(f"Name: nvidia-dali-cuda{cuda}\nVersion: {number}\n")
    printed = program("from dali_storage.readers import file")
    assert "nvidia-dali-cuda110 2.3.0" in printed
    assert "uninstall both" in printed


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ("2.1.0", "dali_storage.dynamic needs DALI 2.2 or newer, found 2.1.0"),
        pytest.param(
            "2.2.0",
            "capture=True (compile=True in DALI 2.2) needs DALI 2.3 or newer, found 2.2.0",
            marks=pytest.mark.long,  # the import takes seconds
        ),
    ],
)
def test_dynamic_mode_is_refused_by_name_where_dali_lacks_it(program, found, message):
    code = """
    from dali_storage.dynamic.readers import File
    File(files=["x"]).next_epoch(4, capture=True)
    """
    assert message in program(f"nvidia.dali.__version__ = {found!r}\n" + textwrap.dedent(code))


NEWER = """
nvidia.dali.__version__ = "2.99.0"
theirs = fn.readers.file
fn.readers.file = lambda **given: theirs(**given | {change})
from dali_storage import readers
for _ in range(2):
    a_pipeline(readers.file).run()
print("finished")
"""


@pytest.mark.dali("2.2", "which it takes for another one")
@pytest.mark.long
def test_a_newer_dali_with_the_same_order_is_named_in_one_warning(program):
    printed = program(NEWER.replace("{change}", "{}"))
    assert printed.count("UntestedDali: DALI 2.99.0 is newer than 2.4") == 1
    assert "finished" in printed


@pytest.mark.dali("2.2", "which it takes for another one")
@pytest.mark.long
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


@pytest.mark.parametrize(
    ("change", "use", "message"),
    [
        (
            "Pipeline._pipes = type('Never', (set,), {'add': lambda *_: None})()",
            "a_pipeline(readers.file).run()",
            "does not register its pipelines",
        ),
        (
            "new = Executor.GetSerializedCheckpoint\n"
            "Pipeline._get_checkpoint = lambda it, **_: new(it._pipe, context(it))",
            "a_pipeline(readers.file).checkpoint()",
            "made a checkpoint without dali_storage's readers",
        ),
        (
            "new = Executor.RestoreFromSerializedCheckpoint\n"
            "Pipeline._restore_state_from_checkpoint = lambda it: "
            "it._checkpoint and new(it._pipe, it._checkpoint)",
            "a_pipeline(readers.file, checkpoint=a_pipeline(readers.file).checkpoint()).run()",
            "restored a checkpoint without this reader's position",
        ),
    ],
    ids=["pipelines", "saving", "restoring"],
)
@pytest.mark.long
def test_a_pipeline_that_goes_other_ways_is_refused(program, change, use, message):
    context = """
def context(pipeline):
    made = backend.ExternalContextCheckpoint()
    made.pipeline_data = "{}"
    return made
"""
    printed = program(f"{context}{change}\nfrom dali_storage import readers\n{use}")
    assert message in printed
    assert "RuntimeError" in printed


@pytest.mark.dali("2.2", "which it takes for another one")
@pytest.mark.long
def test_a_checkpoint_of_dali_1_53_is_refused_by_name(program):
    code = """
    save = Executor.GetSerializedCheckpoint
    from dali_storage import readers
    made = backend.ExternalContextCheckpoint()
    made.pipeline_data = pickle.dumps({"iter": 0, "epoch_idx": 0})
    saved = a_pipeline(readers.file)
    saved.build()
    a_pipeline(readers.file, checkpoint=save(saved._pipe, made)).build()
    """
    assert "the checkpoint was made with DALI before 2.0, but this is DALI" in program(code)


@pytest.mark.dali("2.2", "which it takes for another one")
@pytest.mark.long
def test_a_checkpoint_of_another_engine_is_refused_by_name(program):
    code = """
    from dali_storage import readers
    import functools
    shuffled = functools.partial(readers.file, shuffle_after_epoch=True)
    saved = a_pipeline(shuffled).checkpoint().replace(b'"shuffle_bits": 64', b'"shuffle_bits": 32')
    a_pipeline(shuffled, checkpoint=saved).build()
    """
    assert "was made with a shuffle_after_epoch of 32 bits, but this reader has" in program(code)
