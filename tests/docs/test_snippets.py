"""The snippets of the pages run."""

import ast
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import textwrap
from contextlib import chdir, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn
from PIL import Image

from dali_storage import readers
from dali_storage.cli import receipt
from dali_storage.cli.index import main as make_indexes
from dali_storage.contract.errors import SampleReplaced
from dali_storage.contract.reader import Reader
from dali_storage.testing import ReaderTests
from tests.kit import manifests
from tests.kit.containers import write_numbered_tars
from tests.kit.dali import pipeline_of
from tests.kit.databases import datum, write_lmdb
from tests.kit.pages import snippets, text_of
from tests.kit.parity import build, contents, take
from tests.kit.paths import ROOT
from tests.kit.pictures import make_pictures
from tests.kit.videos import write_video


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


class TestTheBackendOfItsPage(ReaderTests):
    def open(self, catalog):
        names = {}
        exec(snippets("docs/write-a-backend.md", "python")[0], names)
        return names["PreadReader"](catalog)


def test_the_backend_of_its_page_has_at_most_40_lines():
    assert len(snippets("docs/write-a-backend.md", "python")[0].splitlines()) <= 40


def test_the_backend_of_its_page_needs_no_packaging(data):
    backend, pipeline, _ = snippets("docs/write-a-backend.md", "python")
    code = here(pipeline, {"/data/train": str(data), "batch_size=64": "batch_size=20"})
    paths = sorted(data.rglob("*.jpg"))
    printed = run(f"{backend}{code}print([bytes(data.at(i)) for i in range(20)], len(labels))")
    assert printed == f"{[path.read_bytes() for path in paths]} 20\n"


def test_the_tests_of_the_page_of_the_backend_are_collected():
    names = {"PreadReader": Reader}
    exec(snippets("docs/write-a-backend.md", "python")[2], names)
    assert issubclass(names["TestPread"], ReaderTests)


def test_the_snippets_of_older_code_are_read_by_dali_storage(data):
    made = ["pipe = Training()\n", ""]
    for code, pipeline in zip(snippets("docs/older-code.md", "python"), made, strict=True):
        code = here(code, {"/data/train": str(data)} | SMALL)
        read = "import dali_storage\npipe.run()\n"
        read += 'print(dali_storage.statistics(pipe, "Reader").batches > 0)'
        assert run(f"{code}{pipeline}{read}") == "True\n"


def test_the_records_of_the_page_of_readers_of_containers_are_read(data, tmp_path, monkeypatch):
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
    exec(snippets("docs/container-readers.md", "python")[0], names)
    decoded, labels = names["images"](batch_size=20).run()
    for number, label in enumerate(labels.as_array().ravel().tolist()):
        expected = Image.open(io.BytesIO(images[label - 100]))
        assert decoded.at(number).shape == (expected.height, expected.width, 3)


def test_the_manifests_of_the_audio_page_are_read(data, tmp_path):
    (code,) = snippets("docs/audio.md", "python")
    sound = manifests.recording(tmp_path / "a.flac", 9000, 8000, ("FLAC", "PCM_16")).path
    line = json.loads(*snippets("docs/audio.md", "json"))
    spoken = [line | {"audio_filepath": str(sound), "offset": 0.5, "duration": 0.25}]
    seen = [{"image": path.name, "caption": "x", "label": 7} for path in data.glob("class0/*.jpg")]
    places = {"/data/train.json": manifests.write(tmp_path / "speech", spoken)}
    places["/data/captions.jsonl"] = manifests.write(tmp_path / "captions", seen)
    code = here(code, places | {"/data/images": str(data / "class0")})
    show = "print([it[0].shape() for each in (speech(), pictures()) for it in each.run()])"
    shapes = ast.literal_eval(run(f"{code}{show}"))
    assert shapes[1:3] + shapes[4:] == [[], [len("hello")], [1], [1]]
    assert shapes[0] == [128, 1 + 16000 // 4 // 256]


def test_the_images_and_masks_of_the_readers_page_are_cropped_alike(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 34, (40, 50), np.uint8)
    for template in columns_of_the_page()[0][0]:
        path = tmp_path / template.format("aachen/aachen_000000_000019")
        path.parent.mkdir(parents=True)
        Image.fromarray(pixels).save(path)
    changes = {"/data/cityscapes": str(tmp_path), "(512, 512)": "(30, 20)"}
    code = here(snippets("docs/more-readers.md", "python")[0], changes)
    read = "print([it.as_array()[..., :1].tolist() for it in cityscapes(batch_size=4).run()])"
    images, masks = ast.literal_eval(run(f"{code}{read}"))
    assert images == masks
    assert np.shape(images) == (4, 30, 20, 1)


def columns_of_the_page():
    """The templates of the data sets of the readers page, and the file of their keys, or "all"."""
    (table,) = re.findall(r"\| data set \|.*\n\|.*\n((?:\|.*\n)+)", text_of("docs/more-readers.md"))
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()]
    return [(re.findall(r"`([^`]+)`", files), keys.strip("`")) for _, files, keys in rows]


@pytest.mark.parametrize(("files", "keys"), columns_of_the_page())
def test_the_templates_of_the_readers_page_find_their_files(files, keys, tmp_path):
    given = {} if keys == "all" else {"keys": keys}
    for key in ("a", "a/b"):
        for template in files:
            path = tmp_path / template.format(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(path.name)
    if given:
        (tmp_path / keys).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / keys).write_text("a\na/b\n")
    pipeline = build(readers.columns, 2, {}, files=files, file_root=tmp_path, **given)
    expected = [[Path(it.format(key)).name.encode() for key in ("a", "a/b")] for it in files]
    assert contents(pipeline) == expected


def test_the_boxes_of_the_coco_page_are_cropped(data):
    size = {"width": 40, "height": 30}
    images = [{"id": it, "file_name": f"class{it % 2}/{it}.jpg"} | size for it in range(20)]
    entries = [{"image_id": it, "category_id": 1, "bbox": [1, 2, 9, 9]} for it in range(20)]
    content = {"images": images, "annotations": entries, "categories": [{"id": 1}]}
    (data / "all.json").write_text(json.dumps(content))
    names = {"/data/coco/train": str(data), "/data/coco/instances.json": f"{data}/all.json"}
    made = {}
    exec(here(snippets("docs/coco.md", "python")[0], SMALL | names), made)
    pictures, boxes, labels = made["detection"]().run()
    assert pictures.as_array().shape == (4, 300, 300, 3)
    assert len(boxes) == len(labels) == 4


def test_the_images_of_the_lmdb_page_are_decoded(data, tmp_path):
    images = [path.read_bytes() for path in sorted(data.rglob("*.jpg"))]
    write_lmdb(tmp_path / "db", [datum(it, label) for label, it in enumerate(images)])
    (code,) = snippets("docs/lmdb.md", "python")
    changes = ON_CPU | {"/data/train_lmdb": str(tmp_path / "db"), "batch_size=64": "batch_size=20"}
    names = {}
    exec(here(code, changes), names)
    decoded, labels = names["train"]().run()
    order = labels.as_array().ravel().tolist()
    assert sorted(order) == [*range(20)] != order
    for number, label in enumerate(order):
        expected = Image.open(io.BytesIO(images[label]))
        assert decoded.at(number).shape == (expected.height, expected.width, 3)


def test_the_statistics_of_a_running_reader_go_to_the_tools_that_people_use(data, tmp_path):
    """In a process of its own, because all its readers are shown; TensorBoard is a stand-in."""
    show, _ = snippets("docs/slow.md", "python")
    board, others, prometheus, _ = snippets("docs/observability.md", "python")
    port = {"start_http_server(9400)": 'server, _ = start_http_server(0, "127.0.0.1")'}
    parts = [
        PIPELINE,
        show,
        WRITERS,
        board.replace("1000", "101"),
        FIRST,
        others,
        here(prometheus, port),
        ASK,
    ]
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(parts), str(data)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.stderr == ""
    lines = run.stdout.splitlines()
    assert re.fullmatch(r"\d\.\d of \d batches ready, waited \d+\.\d\d s", lines[0])
    assert [line.split()[0] for line in lines[1:4]] == ["decoding", "opening", "reading"]
    assert any(re.fullmatch(r"0\.\d{3} s \w+: '.*\.jpg and \d+ more'", line) for line in lines)
    assert lines[-4].startswith("tensorboard dali_storage/Reader/batches 21.0 0")
    assert [line.split()[0] for line in lines[-3:-1]] == ["wandb", "mlflow"]
    assert re.fullmatch(r'dali_storage_batches_total\{reader="Reader"\} 12\d\.0', lines[-1])


PIPELINE = """
import sys
from types import ModuleType, SimpleNamespace
from nvidia.dali import Pipeline
from dali_storage import readers
pipe = Pipeline(batch_size=4, num_threads=1, device_id=None)
with pipe:
    pipe.set_outputs(*readers.file(file_root=sys.argv[1], name="Reader"))
for _ in range(3):
    pipe.run()
"""
WRITERS = """
first = []
class SummaryWriter:
    def __init__(self, folder):
        pass
    def add_scalar(self, *row):
        first.append(row)
sys.modules["torch.utils.tensorboard"] = module = ModuleType("torch.utils.tensorboard")
sys.modules.setdefault("torch", ModuleType("torch"))
sys.modules.setdefault("torch.utils", ModuleType("torch.utils"))
module.SummaryWriter = SummaryWriter
took = lambda tool: lambda metrics, step: print(tool, metrics["dali_storage/Reader/batches"], step)
wandb, mlflow = SimpleNamespace(log=took("wandb")), SimpleNamespace(log_metrics=took("mlflow"))
"""
FIRST = "print('tensorboard', *first[0])"
ASK = """
import urllib.request
with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}") as answer:
    text = answer.read().decode()
print(*[line for line in text.splitlines() if line.startswith("dali_storage_batches_total")])
server.shutdown()
"""


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


def test_the_text_labels_of_the_containers_page_are_numbers(data, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number, path in enumerate(sorted(data.rglob("*.jpg"))):
            (tmp_path / "label").write_text(str(70 + 3 * number))
            tar.add(path, f"{number}.jpg")
            tar.add(tmp_path / "label", f"{number}.cls")
    *_, code = snippets("docs/containers.md", "python")
    exec(here(code, SMALL | {"/data/a.tar": str(tmp_path / "a.tar")}), names := {})
    pipe = names["train"](enable_checkpointing=True)
    labels = [pipe.run()[1].as_array().ravel().tolist() for _ in range(2)]
    assert labels == [[70, 73, 76, 79], [82, 85, 88, 91]]
    resumed = names["train"](enable_checkpointing=True, checkpoint=pipe.checkpoint())
    assert resumed.run()[1].as_array().ravel().tolist() == [94, 97, 100, 103]


def test_the_videos_of_the_page_of_other_formats_are_read_in_the_windows_of_dali(tmp_path):
    frames = {str(tmp_path / "a.avi"): 50, str(tmp_path / "b.avi"): 33}
    for path, count in frames.items():
        write_video(Path(path), count)
    (code,) = snippets("docs/other-formats.md", "python")
    exec(here(code, {'{"/data/a.avi": 250, "/data/b.avi": 90}': repr(frames)}), names := {})
    [ours] = take(names["clips"](batch_size=4), 1)
    windows = {"sequence_length": 16, "stride": 2, "step": 8, "enable_frame_num": "scalar"}
    reader = fn.experimental.readers.video
    [theirs] = take(build(reader, 4, {}, filenames=[*frames], **windows), 1)
    assert [np.frombuffer(start, np.int32).tolist() for _, _, start in theirs[1]] == [
        [0],
        [8],
        [16],
        [0],
    ]
    assert sorted(zip(*ours, strict=True)) == sorted(zip(*theirs, strict=True))


def test_frames_beyond_the_end_of_a_video_are_what_the_page_of_other_formats_says(tmp_path):
    write_video(tmp_path / "a.avi", 10)

    def clip(**chosen):
        def define():
            video, _ = readers.file(files=[str(tmp_path / "a.avi")])
            chosen.update(start_frame=6, sequence_length=4, stride=2)
            return [fn.decoders.video(video, **chosen)]

        return np.asarray(pipeline_of(define, batch_size=1).run()[0][0]).max((1, 2, 3))

    assert clip(pad_mode="none").all()
    assert clip(pad_mode="none").shape == (2,)
    assert clip().astype(bool).tolist() == [True, True, False, False]
    edge = clip(pad_mode="edge")
    assert edge[1:].tolist() == [edge[1]] * 3


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_pipeline_of_a_first_page_delivers_every_sample(page, data):
    (code,) = snippets(page, "python")
    code = here(code, SMALL | {"/data/train": str(data)})
    assert run(code).splitlines() == ["torch.Size([4, 224, 224, 3]) torch.Size([4, 1])"] * 5


@pytest.mark.parametrize(
    "diff", [*snippets("README.md", "diff"), *snippets("docs/start.md", "diff")]
)
def test_the_diff_of_a_page_reads_every_sample(diff, data):
    """Its new side, in a pipeline."""
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
    code = snippets("docs/loaders.md", "python")[1]
    train = {"/data/train": str(data), "pass  # train": "print(images.shape, labels.shape)"}
    lines = run(here(code, ON_CPU | train)).splitlines()
    assert lines[:5] == ["torch.Size([4, 224, 224, 3]) torch.Size([4])"] * 5
    assert re.match(r"[\d,]+ samples/s · waited \d+% · of it storage \d+% → \w+-bound: ", lines[5])
    assert len(lines) == 18


def test_the_loader_of_the_page_on_bad_samples_replaces_them(data, tmp_path):
    (data / "class0" / "0.jpg").write_bytes(b"<html>")
    changes = SMALL | {"train=True,": 'train=True, device="cpu", num_threads=1,'}
    changes |= {"/data/train": str(data), "bad.jsonl": str(tmp_path / "bad.jsonl")}
    code = here(snippets("docs/bad-samples.md", "python")[1], changes)
    with pytest.warns(SampleReplaced):
        assert run(code) == f"0 {data}/class0/0.jpg it is HTML or XML\n"


def test_the_epoch_of_the_page_on_receipts_is_complete(data, tmp_path):
    whole, epoch = str(tmp_path / "train.json"), str(tmp_path / "epoch.json")
    assert receipt.main([str(data), "--bytes", "-o", whole]) == 0
    alone = f'"gloo", init_method="file://{tmp_path}/group", rank=0, world_size=1'
    changes = {"/data/train": str(data), '"gloo"': alone}
    code = here(snippets("docs/receipts.md", "python")[0], changes)
    run(code + "\ndist.destroy_process_group()\n", tmp_path)
    assert receipt.main(["compare", whole, epoch]) == 0


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


def test_the_transforms_of_their_page_work(data):
    code = here(snippets("docs/transforms.md", "python")[0], SMALL | {"/data/train": str(data)})
    assert run(f"{code}\nprint(next(iter(loader))[0].shape)") == "torch.Size([4, 3, 160, 160])\n"


def test_the_evaluator_of_the_page_on_speed_takes_loaders(data):
    _, evaluator = snippets("docs/slow.md", "python")
    code = f"""
from dali_storage.loaders import image_folder
loader = image_folder({str(data)!r}, train=False, batch_size=4, device="cpu")
{evaluator.replace("pass", "print(labels.tolist())")}
"""
    replayed = run(code).splitlines()
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


def test_a_step_of_slurm_reads_its_shard(data):
    train, *_ = snippets("docs/scaling.md", "python")
    code = f"""
import os
{without_a_gpu(train, data)}
os.environ |= {{"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}}
pipe = train()
print(pipe.reader_meta("Reader")["shard_id"], pipe.reader_meta("Reader")["number_of_shards"])
"""
    assert run(code, cwd=data.parent) == "1 2\n"


def test_the_program_of_the_page_on_resuming_gives_each_sample_once(data):
    """On two ranks, until rank 0 saves the state, and then on one with other batches."""
    (code,) = snippets("docs/resume.md", "python")
    given = []

    def train(rank, world, batch, steps):
        changes = {"/data/train": str(data), "2048": str(batch), "step % 50 == 0": "step == 2"}
        changes |= {"(1, 101)": f"(1, {steps + 1})", "# train": "; given.extend(map(bytes, jpegs))"}
        os.environ |= {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(world)}
        exec(here(code, changes), {"given": given})

    with chdir(data.parent), patch.dict(os.environ):
        train(1, 2, 4, 2)
        train(0, 2, 4, 2)
        train(0, 1, 6, 2)
    assert sorted(given) == sorted(path.read_bytes() for path in data.rglob("*.jpg"))


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


def test_a_signal_prints_the_stacks_and_the_report():
    (code,) = [it for it in snippets("docs/observability.md", "python") if "report_on" in it]
    code += "\nsignal.raise_signal(signal.SIGUSR2)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert re.fullmatch(r"(?s).*most recent call first.*dali_storage: 0 open .*\n", done.stderr)
    assert done.returncode == 0
