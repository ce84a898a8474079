"""The snippets of the pages run."""

import ast
import io
import os
import re
import textwrap
from contextlib import chdir, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from nvidia.dali import Pipeline
from PIL import Image

from dali_storage.cli.index import main as make_indexes
from dali_storage.contract.errors import SampleReplaced
from dali_storage.contract.reader import Reader
from dali_storage.testing import ReaderTests
from tests.kit.containers import write_numbered_tars
from tests.kit.pages import snippets
from tests.kit.paths import ROOT
from tests.kit.pictures import make_pictures


@pytest.fixture
def data(tmp_path):
    """20 JPEGs in two classes."""
    root = tmp_path / "data"
    for number in range(20):
        folder = root / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40 + number, 30), (number, 0, 99)).save(folder / f"{number}.jpg")
    return root


SMALL = {"batch_size=64": "batch_size=4"}
ON_CPU = SMALL | {"device_id=0": "device_id=None", 'device="mixed"': 'device="cpu"'}


def here(code, changes):
    """A snippet for this machine; all changes must apply."""
    for there, ours in changes.items():
        assert there in code, there
        code = code.replace(there, ours)
    return code


def run(code, cwd=ROOT):
    """What a program prints. It runs in this process: to import what it needs takes seconds."""
    with redirect_stdout(io.StringIO()) as printed, chdir(cwd), patch.dict(os.environ):
        exec(compile(code, "snippet", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


class TestTheBackendOfTheContributingPage(ReaderTests):
    def open(self, catalog):
        names = {}
        exec(snippets("CONTRIBUTING.md", "python")[0], names)
        return names["PreadReader"](catalog)


def test_the_backend_of_the_contributing_page_has_at_most_40_lines():
    assert len(snippets("CONTRIBUTING.md", "python")[0].splitlines()) <= 40


def test_the_backend_of_the_contributing_page_needs_no_packaging(data):
    backend, pipeline, _ = snippets("CONTRIBUTING.md", "python")
    code = here(pipeline, {"/data/train": str(data), "batch_size=64": "batch_size=20"})
    paths = sorted(data.rglob("*.jpg"))
    printed = run(f"{backend}{code}print([bytes(data.at(i)) for i in range(20)], len(labels))")
    assert printed == f"{[path.read_bytes() for path in paths]} 20\n"


def test_the_tests_of_the_contributing_page_are_collected():
    names = {"PreadReader": Reader}
    exec(snippets("CONTRIBUTING.md", "python")[2], names)
    assert issubclass(names["TestPread"], ReaderTests)


def test_the_snippets_of_older_code_are_read_by_dali_storage(data):
    made = ["pipe = Training()\n", ""]
    for code, pipeline in zip(snippets("docs/differences.md", "python"), made, strict=True):
        code = here(code, {"/data/train": str(data)} | SMALL)
        read = "import dali_storage\npipe.run()\n"
        read += 'print(dali_storage.statistics(pipe, "Reader").batches > 0)'
        assert run(f"{code}{pipeline}{read}") == "True\n"


def test_the_records_of_the_containers_page_are_read(data, tmp_path, monkeypatch):
    images = [path.read_bytes() for path in sorted(data.rglob("*.jpg"))]
    monkeypatch.chdir(tmp_path)
    for name, part in (("a.bin", images[:10]), ("b.bin", images[10:])):
        Path(name).write_bytes(b"".join(part))
    sizes = np.array(list(map(len, images)))
    np.save("sizes.npy", sizes)
    np.save("offsets.npy", np.concatenate([np.cumsum(part) - part for part in np.split(sizes, 2)]))
    np.save("file_ids.npy", np.arange(20) // 10)
    np.save("labels.npy", np.arange(20) + 100)
    names = {}
    exec(snippets("docs/containers.md", "python")[2], names)
    decoded, labels = names["images"](batch_size=20).run()
    for number, label in enumerate(labels.as_array().ravel().tolist()):
        expected = Image.open(io.BytesIO(images[label - 100]))
        assert decoded.at(number).shape == (expected.height, expected.width, 3)


def test_the_orders_of_the_sampling_page_are_given(data, tmp_path):
    mixed, own, mixture, classes = snippets("docs/sampling.md", "python")
    roots = {'"/data/photos"': repr(str(data)), '"/data/scans"': repr(str(data))}
    assert run(here(mixed, roots | ON_CPU)) == "{'photos': (3, 0), 'scans': (1, 0)}\n"
    lengths = [os.path.getsize(path) for path in sorted(data.rglob("*.jpg"))]
    np.save(tmp_path / "lengths.npy", lengths)
    read = "print([data.shape() for data in samples(batch_size=20).run()][0])"
    code = here(own, {"/data/train": str(data), "np.array_split(shuffled, 10)": "[shuffled]"})
    shapes = [size for (size,) in ast.literal_eval(run(f"{code}{read}", tmp_path))]
    assert shapes == sorted(lengths)
    show = "        print(epoch, step, state['given'])"
    code = f"photos, scans = range(700), range(700, 1000)\n{mixture}{show}"
    steps = [line.split() for line in run(code).splitlines()]
    assert steps[15] == ["0", "16", "0"]  # of epoch 1
    assert [steps[14], steps[16]] == [["0", "15", "960"], ["1", "1", "64"]]
    code = f"labels = [0] * 30 + [1] * 3\n{classes}print(sum(index >= 30 for index in balanced))"
    assert run(code) == "29\n"


def test_the_shards_of_the_containers_page_are_trained_with(data, tmp_path):
    pack, train, _ = snippets("docs/containers.md", "python")
    shards = {"/data/shards": str(tmp_path / "shards")}
    run(here(pack, shards | {"/data/train": str(data)}))
    assert make_indexes([str(tar) for tar in (tmp_path / "shards").iterdir()]) == 0
    changes = ON_CPU | shards | {"pass  # train": "print(images.shape, labels.tolist())"}
    batches = [line.split("]) ") for line in run(here(train, changes)).splitlines()]
    assert [shape for shape, _ in batches] == ["torch.Size([4, 224, 224, 3"] * 5
    labels = [label for _, text in batches for label in ast.literal_eval(text)]
    assert labels != sorted(labels)
    assert sorted(labels) == [0] * 10 + [1] * 10


def test_the_pipeline_of_the_readme_delivers_every_sample(data):
    (code,) = snippets("README.md", "python")
    code = here(code, SMALL | {"/data/train": str(data)})
    assert run(code).splitlines() == ["torch.Size([4, 224, 224, 3]) torch.Size([4, 1])"] * 5


def test_the_diff_of_the_readme_reads_every_sample(data):
    """Its new side, in a pipeline."""
    (diff,) = snippets("README.md", "diff")
    new = [line[1:] for line in diff.splitlines() if line[0] != "-"]
    code = textwrap.indent(here("\n".join(new), {"/data/train": str(data)}), "    ")
    made = f"""
from nvidia.dali import pipeline_def
@pipeline_def(batch_size=20, num_threads=1, device_id=None)
def diff():
{code}
    return jpegs, labels
jpegs, labels = diff().run()
print(sorted(labels.as_array().ravel().tolist()), sum(jpegs.shape()[n][0] for n in range(20)))
"""
    nbytes = sum(path.stat().st_size for path in data.rglob("*.jpg"))
    assert run(made) == f"{[0] * 10 + [1] * 10} {nbytes}\n"


def test_the_pipeline_of_the_loaders_page_is_trained_with(data):
    code = snippets("docs/loaders.md", "python")[2]
    train = {"/data/train": str(data), "pass  # train": "print(images.shape, labels.shape)"}
    lines = run(here(code, ON_CPU | train)).splitlines()
    assert lines[:5] == ["torch.Size([4, 224, 224, 3]) torch.Size([4])"] * 5
    assert re.match(r"[\d,]+ samples/s · waited \d+% · of it storage \d+% → \w+-bound: ", lines[5])
    assert len(lines) == 18


def test_the_loader_of_the_page_on_bad_samples_replaces_them(data, tmp_path):
    (data / "class0" / "0.jpg").write_bytes(b"<html>")
    changes = SMALL | {"train=True,": 'train=True, device="cpu", num_threads=1,'}
    changes |= {"/data/train": str(data), "bad.jsonl": str(tmp_path / "bad.jsonl")}
    code = here(snippets("docs/bad-samples.md", "python")[0], changes)
    with pytest.warns(SampleReplaced):
        assert run(code) == f"0 {data}/class0/0.jpg it is of no known format\n"


@pytest.mark.long
def test_the_folders_of_the_loaders_page_are_read(data, tmp_path):
    synsets = tmp_path / "synsets" / "train"
    synsets.mkdir(parents=True)
    for number, folder in enumerate(sorted(data.iterdir())):
        (synsets / f"n{number:08d}").symlink_to(folder)
    places = {"/data/train": data, "/data/val": data, "/data/imagenet": synsets.parent}
    changes = {there: str(ours) for there, ours in places.items()} | SMALL
    changes["    pass"] = "    print(images.shape, labels.dtype)"
    code = here(snippets("docs/loaders.md", "python")[0], changes)
    lines = run(f"{code}\nprint(len(train), len(val), next(iter(train))[0].shape)").splitlines()
    assert lines[:-1] == ["torch.Size([4, 3, 224, 224]) torch.int64"] * 5
    assert lines[-1] == "5 5 torch.Size([4, 3, 176, 176])"


def test_the_transforms_of_the_loaders_page_work(data):
    code = here(snippets("docs/loaders.md", "python")[1], SMALL | {"/data/train": str(data)})
    assert run(f"{code}\nprint(next(iter(loader))[0].shape)") == "torch.Size([4, 3, 160, 160])\n"


def test_the_tools_of_the_loaders_page_take_loaders_and_pipelines(data):
    *_, statistics, evaluator = snippets("docs/loaders.md", "python")
    code = f"""
from dali_storage.loaders import image_folder
loader = image_folder({str(data)!r}, train=False, batch_size=4, device="cpu")
pipe = loader.pipeline
{statistics}
loader = image_folder({str(data)!r}, train=False, batch_size=4, device="cpu")
{evaluator.replace("pass", "print(labels.tolist())")}
"""
    first, *replayed = run(code).splitlines()
    assert re.fullmatch(r"waited \d+\.\d+ s for the storage, \d\.\d of \d batches ready", first)
    assert len(replayed) == 5
    assert len(set(replayed)) == 1  # of an epoch, three batches of which have other labels


def without_a_gpu(code, data):
    for there, ours in (
        ("/data/train", str(data)),
        ("device_id=0", "device_id=None"),
        ("num_threads=8", "num_threads=1"),
        ("batch_size=64", 'batch_size=4, device="cpu"' if "train=True" in code else "batch_size=4"),
        ("batch_size=2048 // shard.world", 'batch_size=4 // shard.world, device="cpu"'),
        ('"nccl"', '"gloo", store=distributed.HashStore(), rank=0, world_size=1'),
        ('strategy="ddp", devices=8, num_nodes=2, max_epochs=90', "max_epochs=1, **quiet"),
        ("pass  # train", "print(*images.shape)"),
    ):
        code = code.replace(there, ours)
    return code


def test_a_step_of_slurm_reads_its_shard_and_another_number_goes_on(data):
    """The first snippet of the page about scaling and the last one, as two tasks and then one."""
    train, *_, place = snippets("docs/scaling.md", "python")
    code = f"""
import os
{without_a_gpu(train, data)}
os.environ |= {{"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}}
pipe = train()
print(pipe.reader_meta("Reader")["shard_id"], pipe.reader_meta("Reader")["number_of_shards"])
before = [pipe.run()[1].as_array().size for _ in range(2)]
{place}
os.environ |= {{"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}}
file, readers.file = readers.file, lambda **options: file(**options, resume=place)
print(place["given"], readers.state(train(), "Reader")["given"])
readers.file = file
"""
    assert run(code, cwd=data.parent) == "1 2\n16 16\n"


@pytest.mark.long
def test_the_loaders_of_torchrun_and_lightning_are_saved_and_trained_with(data):
    _, torchrun, fit, *_ = (without_a_gpu(s, data) for s in snippets("docs/scaling.md", "python"))
    code = f"""
import os, warnings
import torch
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
{torchrun}
epoch = iter(train)
next(epoch), next(epoch)
save("checkpoint")
rest = [labels.tolist() for _, labels in epoch]
restore("checkpoint")
print([labels.tolist() for _, labels in train] == rest, len(rest))
train.close()
distributed.destroy_process_group()
warnings.simplefilter("ignore")
quiet = dict(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)
quiet |= dict(enable_progress_bar=False, enable_model_summary=False)
import lightning
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, index):
        print(*batch[0].shape)
        return self.layer(torch.ones(1)).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
model = Model()
{fit}
"""
    first, *shapes = run(code, cwd=data.parent).splitlines()
    assert first == "True 3"
    assert shapes == ["4 3 224 224"] * 5


@pytest.mark.usefixtures("pipelines_end")
def test_the_pipeline_of_the_object_store_page_delivers_every_sample(server, tmp_path):
    make_pictures(tmp_path / "train")
    server.serve("bucket", tmp_path)
    code, _ = snippets("docs/object-store.md", "python")
    names = {}
    exec(here(code, ON_CPU | {"http://127.0.0.1:9000": server.url}), names)
    pipeline = names["train"]()
    labels = [int(label) for _ in range(6) for label in pipeline.run()[1].as_array().ravel()]
    expected = [number for number, _ in enumerate(sorted((tmp_path / "train").iterdir()))]
    assert sorted(set(labels)) == expected
    assert pipeline.epoch_size("Reader") == len([*tmp_path.rglob("*.*")])


@pytest.mark.usefixtures("pipelines_end")
def test_the_containers_of_the_object_store_page_are_read(server, tmp_path):
    tars, indexes = write_numbered_tars(tmp_path, [2] * 100)
    for number, (tar, index) in enumerate(zip(tars, indexes, strict=True)):
        server.put(f"bucket/shards/{number:05d}.tar", Path(tar).read_bytes())
        Path(index).rename(tmp_path / f"{number:05d}.idx")
    _, code = snippets("docs/object-store.md", "python")
    code = here(code, {"/data/indexes": str(tmp_path), '["jpg", "cls"]': '["n", "n"]'})
    pipeline = Pipeline(200, num_threads=1, device_id=None)
    names = {}
    with pipeline:
        exec(f"from dali_storage import readers\n{code}", names)
        pipeline.set_outputs(names["jpegs"])
    (samples,) = pipeline.run()
    numbers = [int(np.asarray(sample).view(np.int64)[0]) for sample in samples]
    assert sorted(numbers) == [*range(200)]
    assert numbers != sorted(numbers)
