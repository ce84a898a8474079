"""DLIO itself, on data that DLIO makes, with its ranks under mpirun: make test-dlio."""

import contextlib
import hashlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from tests.kit.containers import bytes_feature, example, int64_feature, write_tfrecord
from tests.kit.paths import ROOT
from tests.kit.process import SECONDS, wait_until

FILES, RECORDS = 12, 4
FORMATS = ("jpeg", "png", "npy", "npz", "tfrecord")
ENVIRON = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
ENVIRON |= {"DFTRACER_ENABLE": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
MPIRUN = ["mpirun", "--bind-to", "none", "--oversubscribe"]
MPIRUN += ["--mca", "mpi_yield_when_idle", "1", "-n"]


def start(folder, ranks, workloads, **more):
    folder.mkdir(exist_ok=True)
    command = sys.executable, "-m", "tests.kit.dlio_run", str(folder), json.dumps(workloads)
    launch = (*MPIRUN, str(ranks)) if ranks > 1 else ()
    with open(folder / "log", "wb") as log:
        return subprocess.Popen(
            [*launch, *command],
            cwd=ROOT,
            env=os.environ | ENVIRON | more,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def dlio(folder, ranks, workloads, **more):
    """What each rank notes about each workload."""
    ended = start(folder, ranks, workloads, **more).wait()
    assert ended == 0, (folder / "log").read_text()[-5000:]
    return {
        name: [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(ranks)]
        for name in workloads
    }


def workload(data, form, **more):
    count = FILES // RECORDS if form == "tfrecord" else FILES
    settings = {"dataset.format": form, "dataset.num_files_train": count}
    settings |= {"dataset.data_folder": str(data / form), "dataset.record_length": 10_000}
    if form == "tfrecord":
        settings |= {"dataset.num_samples_per_file": RECORDS, "reader.data_loader": "native_dali"}
    if form == "jpeg":
        settings |= {"dataset.num_files_eval": 6, "workflow.evaluation": True}
    return settings | {name.replace("__", "."): value for name, value in more.items()}


def image(file, record):
    return np.random.default_rng([file, record]).bytes(9000)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """DLIO's files. It makes TFRecords with TensorFlow only: those are made here, as DLIO does."""
    made = tmp_path_factory.mktemp("dlio")
    more = {"workflow__generate_data": True, "workflow__train": False}
    dlio(made / "log", 1, {form: workload(made, form, **more) for form in FORMATS[:-1]})
    for folder in ("train", "valid", "index/train"):
        (made / "tfrecord" / folder).mkdir(parents=True)
    for file in range(FILES // RECORDS):
        name = f"img_{file}_of_3.tfrecord"
        records = [
            example({"image": bytes_feature([image(file, it)]), "size": int64_feature([it])})
            for it in range(RECORDS)
        ]
        index = made / "tfrecord/index/train" / f"{name}.idx"
        write_tfrecord(made / "tfrecord/train" / name, records, index)
    return made


def samples_of(path):
    """The digests of a file's samples."""
    path = Path(path)
    if path.suffix == ".tfrecord":
        samples = [image(int(path.name.split("_")[1]), it) for it in range(RECORDS)]
    elif path.suffix in (".npy", ".npz"):
        loaded = np.load(path)
        samples = [(loaded["x"] if path.suffix == ".npz" else loaded).tobytes()]
    else:
        samples = [path.read_bytes()]
    return [hashlib.sha256(sample).hexdigest() for sample in samples]


@pytest.fixture(scope="module", params=[1, 2, 3])
def epochs(request, data, tmp_path_factory):
    """The epochs of each rank for each format, and those of shuffled records."""
    workloads = {form: workload(data, form) for form in FORMATS}
    workloads["shuffled"] = workload(data, "tfrecord", reader__sample_shuffle="seed")
    workloads["few"] = workload(data, "png", dataset__num_files_train=2)
    workloads["stopped"] = workload(data, "jpeg", train__total_training_steps=1)
    return dlio(tmp_path_factory.mktemp("ranks"), request.param, workloads)


@pytest.mark.parametrize("form", FORMATS)
def test_each_rank_reads_its_part_of_the_files_of_dlio_in_their_order(epochs, form):
    ranks = epochs[form]
    assert [epoch["train"] for epoch in ranks[0]].count(True) == 2
    for together in zip(*ranks, strict=True):
        files = together[0]["files"]
        assert all(epoch["files"] == files for epoch in together)
        delivered = [sample for epoch in together for sample in epoch["samples"]]
        assert delivered == [sample for path in files for sample in samples_of(path)]
    first, second = [epoch["files"] for epoch in ranks[0] if epoch["train"]]
    assert first != second


def test_an_evaluation_reads_the_files_for_it(epochs):
    assert ["/valid/" in it["files"][0] for it in epochs["jpeg"][0]] == [False, True] * 2


def test_records_are_shuffled_by_the_seed_of_dlio(epochs):
    for rank in epochs["shuffled"]:
        for epoch in rank:
            every = [sample for path in epoch["files"] for sample in samples_of(path)]
            assert epoch["numbers"] != sorted(epoch["numbers"])
            assert epoch["samples"] == [every[number] for number in epoch["numbers"]]


@pytest.mark.parametrize("form", ["jpeg", "tfrecord", "stopped"])
def test_nothing_is_read_that_is_not_delivered(epochs, form):
    read = [[epoch["read"] for epoch in rank] for rank in epochs[form]]
    assert read == [[len(epoch["samples"]) for epoch in rank] for rank in epochs[form]]


REFUSED = {
    "a batch": ({"reader__batch_size": 13}, "12 samples of train on 1 ranks are 12 for each"),
    "no evaluation": ({"reader__batch_size_eval": 7}, "smaller reader.batch_size_eval"),
    "an index": ({"reader__data_loader_sampler": "index"}, "data_loader_sampler must be iterative"),
    "parts": ({"dataset__num_samples_per_file": 2}, "num_samples_per_file must be 1, not 2"),
    "csv": ({}, "no reader for csv"),
    "fewer": ({"dataset__num_samples_per_file": 3}, "num_samples_per_file is 3, but .* has 4"),
    "more": ({"dataset__num_samples_per_file": 5}, "num_samples_per_file is 5"),
}


@pytest.fixture(scope="module")
def refusals(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    (data / "csv/valid").mkdir(parents=True)
    (data / "csv/train").mkdir()
    for number in range(FILES):
        (data / f"csv/train/{number}.csv").touch()
    forms = {"fewer": "tfrecord", "more": "tfrecord", "csv": "csv"}
    workloads = {
        name: workload(data, forms.get(name, "jpeg"), **more) for name, (more, _) in REFUSED.items()
    }
    return dlio(folder, 1, workloads)


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_do_not_fit_are_refused_by_name(refusals, name):
    (found,) = refusals[name]
    assert isinstance(found, str)
    assert re.search(REFUSED[name][1], found), found


def test_a_rank_without_samples_is_refused_on_all_ranks(epochs):
    found = epochs["few"]
    if len(found) == 1:
        assert len(found[0][0]["samples"]) == 2
    for each in found if len(found) > 1 else ():
        assert f"2 samples of train on {len(found)} ranks are {2 // len(found)} for each" in each


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[1]", "DALI_STORAGE_OPTIONS must be like {\"direct\": true}, not '[1]'"),
        ('{"direkt": true}', "has no option direkt"),
    ],
)
def test_options_reach_the_backend_or_are_refused(data, tmp_path, text, error):
    workloads = {"bad": workload(data, "jpeg")}
    ((found,),) = dlio(tmp_path, 1, workloads, DALI_STORAGE_OPTIONS=text).values()
    assert error in found


def test_a_rank_that_fails_ends_all(data, tmp_path):
    """The others would wait for it at DLIO's barrier."""
    for kind in ("train", "valid"):
        (tmp_path / "jpeg" / kind).mkdir(parents=True)
        for path in (data / "jpeg" / kind).iterdir():
            (tmp_path / "jpeg" / kind / path.name).symlink_to(path)
    lost = max((tmp_path / "jpeg/train").iterdir())
    lost.unlink()
    lost.symlink_to(tmp_path / "nowhere")
    running = start(tmp_path, 2, {"lost": workload(tmp_path, "jpeg", reader__file_shuffle="off")})
    assert running.wait() != 0
    assert lost.name in (tmp_path / "log").read_text()


def test_a_ctrl_c_ends_all_ranks(data, tmp_path):
    running = start(tmp_path, 2, {"long": workload(data, "jpeg", train__computation_time=3600)})
    try:
        wait_until(lambda: b"Starting block 1" in (tmp_path / "log").read_bytes())
        os.kill(running.pid, signal.SIGINT)
        assert running.wait(timeout=SECONDS) != 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def test_an_epoch_that_is_left_early_ends_its_thread_and_closes_its_reader():
    loader = importlib.import_module("dali_storage.dlio.loader")
    ended = Event()

    def batches():
        try:
            yield from range(1000)
        finally:
            ended.set()

    epoch = loader._ahead(batches())
    assert [next(epoch), next(epoch)] == [0, 1]
    epoch.close()
    wait_until(ended.is_set)


@pytest.mark.parametrize(
    ("workload", "files", "legs"),
    [
        ("retinanet", 48, "dlio-bytes-2 dali ours-pipeline ours"),
        ("cosmoflow", 4, "dali ours-pipeline ours-direct"),
        ("unet3d", 4, "dlio-bytes-0 ours"),
    ],
)
def test_the_benchmark_finds_the_digest_of_the_files_in_each_leg(tmp_path, workload, files, legs):
    command = ["benchmarks.dlio", str(tmp_path), "--workloads", workload, "--files", str(files)]
    command += ["--ranks", "2", "--legs", legs.replace(" ", ",")]
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, cwd=ROOT
    )
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| `")]
    assert done.returncode == 0, done.stderr
    # Without a word about what was not delivered, or not as the files have it.
    assert [row[0] for row in rows] == [f"| `{leg}`" for leg in legs.split()]


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("dlio_benchmark", "pip install --no-deps dlio-benchmark==2.0.0"),
        ("mpi4py", "[dlio]'"),
    ],
)
def test_a_missing_package_is_named_with_the_command(package, command):
    script = f"import sys; sys.modules[{package!r}] = None; import dali_storage.dlio"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    (line,) = done.stderr.splitlines()[-1:]
    assert "BackendUnavailable: " in line
    assert f"needs the package {package}" in line
    assert command in line
