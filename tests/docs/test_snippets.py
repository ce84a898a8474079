"""The programs of the pages run as they are printed, without a GPU; see tests/kit/printed.py."""

import ast
import hashlib
import io
import itertools
import json
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import textwrap
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from nvidia.dali import fn
from PIL import Image

from dali_storage import readers
from dali_storage.cli import receipt
from dali_storage.cli.index import main as make_indexes
from tests.kit import manifests
from tests.kit.containers import index_by_wds2idx, write_tar
from tests.kit.dali import pipeline_of
from tests.kit.databases import datum, write_lmdb
from tests.kit.objects.client import environment
from tests.kit.pages import snippets, text_of
from tests.kit.parity import build, contents, take
from tests.kit.paths import ROOT
from tests.kit.printed import Printed
from tests.kit.shards import write_mds
from tests.kit.tables import write_table
from tests.kit.videos import write_video


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Runs programs that see 200 JPEGs in two classes as /data/train; see tests/kit/printed.py."""
    with Printed(tmp_path_factory.mktemp("printed")) as run:
        for number in range(SAMPLES):
            folder = run.data / f"photos/class{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            size = 40 + number % 20, 30
            Image.new("RGB", size, (number, 0, 99)).save(folder / f"{number:03}.jpg")
        for name in ("scans", "train", "val"):
            (run.data / name).symlink_to("photos")
        yield run


@pytest.fixture
def run(programs, tmp_path):
    """The same, in the directory of the test."""
    programs.cwd = tmp_path
    return programs


@pytest.fixture
def data(programs):
    """The directory of the pictures, as it is called here."""
    return programs.data / "photos"


SAMPLES = 200


def contents_of(data):
    return [path.read_bytes() for path in sorted(data.rglob("*.jpg"))]


def program(page, number=0):
    return snippets(page, "python")[number]


SIZE = "torch.Size([{0}, 224, 224, 3]) torch.Size([{0}{1}\n"
EPOCH = "".join(SIZE.format(size, "]) torch.int64") for size in (64, 64, 64, 8))
READ = "import dali_storage\npipe.run()\nprint(dali_storage.statistics(pipe, 'Reader').batches > 0)"
SHAPE = "print(next(iter(loader))[0].shape)"
PRINTED = [  # a page, the number of its program, what is added to that, and what both print
    ("README.md", 0, "", SIZE.format(64, ", 1])") * 4),
    ("docs/older-code.md", 0, f"pipe = Training()\n{READ}", "True\n"),
    ("docs/older-code.md", 1, READ, "True\n"),
    ("docs/sampling.md", 0, "", snippets("docs/sampling.md", "text")[0]),
    ("docs/start.md", 0, "", EPOCH * 2),
    ("docs/transforms.md", 0, SHAPE, "torch.Size([64, 3, 160, 160])\n"),
]


@pytest.mark.parametrize(("page", "number", "more", "printed"), PRINTED)
def test_a_program_of_a_page_prints(page, number, more, printed, run):
    assert run(program(page, number), more) == printed


names = {}
PREAD, USE, ZIP, USE_ZIP, *BACKEND_TESTS = snippets("docs/write-a-backend.md", "python")
for code in PREAD, ZIP, *BACKEND_TESTS:
    exec(code, names)
TestPread, TestZip = names["TestPread"], names["TestZip"]


def test_the_backend_of_its_page_has_at_most_40_lines():
    assert len(PREAD.splitlines()) <= 40


def test_the_backends_of_their_page_need_no_packaging(run, data):
    with zipfile.ZipFile(run.data / "train.zip", "w") as archive:
        for path in sorted(data.rglob("*.jpg")):
            archive.write(path, path.relative_to(data))
    show = "print([bytes(data.at(i)) for i in range(64)], len(labels))"
    both = run(PREAD, USE, show, ZIP, USE_ZIP, show)
    assert both == 2 * f"{contents_of(data)[:64]} 64\n"


SHAPES = "print([data.at(n).shape for n in range(64)], labels.as_array().ravel().tolist())"


def shapes_by_label(text, images):
    """Asserts that pictures, decoded, have the shapes of the files of their labels."""
    shapes, labels = ast.literal_eval(text.replace("] [", "], ["))
    assert shapes == [(*Image.open(io.BytesIO(images[it])).size[::-1], 3) for it in labels]
    assert labels != sorted(labels)
    return labels


def test_the_records_of_the_page_of_readers_of_containers_are_read(run, data, tmp_path):
    images = contents_of(data)
    for name, part in (("a.bin", images[:10]), ("b.bin", images[10:])):
        (tmp_path / name).write_bytes(b"".join(part))
    sizes = np.array(list(map(len, images)))
    columns = {"sizes": sizes, "file_ids": (np.arange(SAMPLES) >= 10).astype(int)}
    columns["offsets"] = np.concatenate([np.cumsum(it) - it for it in np.split(sizes, [10])])
    for name, column in (columns | {"labels": np.arange(SAMPLES)}).items():
        np.save(tmp_path / f"{name}.npy", column)
    shapes_by_label(
        run(program("docs/container-readers.md"), "data, labels = images().run()", SHAPES), images
    )


def test_the_manifests_of_the_audio_page_are_read(run, data):
    manifests.recording(run.data / "a.flac", 9000, 8000, ("FLAC", "PCM_16"))
    line = json.loads(*snippets("docs/audio.md", "json"))
    spoken = [line | {"audio_filepath": "/data/a.flac", "offset": 0.5, "duration": 0.25}]
    seen = [{"image": path.name, "caption": "x", "label": 7} for path in data.glob("class0/*.jpg")]
    (run.data / "images").symlink_to("photos/class0")
    for name, lines in ("train.json", spoken), ("captions.jsonl", seen):
        manifests.write(run.data / name, lines)
    show = "print([it[0].shape() for each in (speech(), pictures()) for it in each.run()])"
    shapes = ast.literal_eval(run(program("docs/audio.md"), show))
    assert shapes[1:3] + shapes[4:] == [[], [len("hello")], [1], [1]]
    assert shapes[0] == [257 // 2, 1 + 16000 // 4 // 256]


def test_the_images_and_masks_of_the_readers_page_are_cropped_alike(run):
    pixels = np.random.default_rng(1).integers(0, 34, (520, 530), np.uint8)
    for template in columns_of_the_page()[0][0]:
        path = run.data / "cityscapes" / template.format("aachen/aachen_000000_000019")
        path.parent.mkdir(parents=True)
        Image.fromarray(pixels).save(path)
    read = "images, masks = (it.as_array()[..., :1] for it in cityscapes().run())\n"
    read += "print((images == masks).all(), images.shape, images.max())"
    assert run(program("docs/more-readers.md"), read) == "True (16, 512, 512, 1) 33\n"


def columns_of_the_page():
    """The templates of the data sets of the readers page, and the file of their keys, or "all"."""
    (table,) = re.findall(r"\| data set \|.*\n\|.*\n((?:\|.*\n)+)", text_of("docs/more-readers.md"))
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()]
    return [(re.findall(r"`([^`]+)`", files), keys.strip("`")) for _, files, keys in rows]


def test_the_batches_of_the_page_without_a_pipeline_are_those_of_the_files(run, data):
    evaluation, source = snippets("docs/batches.md", "python")
    lines = []
    for label in range(2):
        files = sorted((data / f"class{label}").iterdir())
        means = [np.asarray(Image.open(it)).mean() for it in files]
        mean = f"{np.mean(means):.1f}"
        lines.append(f"class {label}: {len(means)} images of brightness {mean}\n")
    assert run(evaluation) == "".join(lines)
    theirs = source[source.index("@pipeline_def") :].replace("train()", "theirs()")
    call = 'fn.readers.file(file_root="/data/train", random_shuffle=True, seed=7)'
    theirs = re.sub(r"fn\.external_source\(.*\)", call, theirs)
    same = "all((a.at(n) == b.at(n)).all() for n in range(64))"
    read = f"print([{same} for a, b in zip(train().run(), theirs().run())])"
    assert run(source, theirs, read) == "[True, True]\n"


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


def test_the_boxes_of_the_coco_page_are_cropped(run, data):
    names = [path.relative_to(data) for path in sorted(data.rglob("*.jpg"))]
    sizes = [{"width": 40 + int(it.stem) % 20, "height": 30} for it in names]
    images = [{"id": n, "file_name": str(it)} | sizes[n] for n, it in enumerate(names)]
    boxes = [{"image_id": it, "category_id": 1, "bbox": [1, 2, 9, 9]} for it in range(SAMPLES)]
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1}]}
    (run.data / "coco").mkdir()
    (run.data / "coco/instances.json").write_text(json.dumps(content))
    (run.data / "coco/train").symlink_to("../photos")
    read = "pictures, boxes, labels = detection().run()\n"
    read += "print(pictures.as_array().shape, len(boxes), len(labels))"
    assert run(program("docs/coco.md"), read) == "(64, 300, 300, 3) 64 64\n"


def test_the_images_of_the_lmdb_page_are_decoded(run, data):
    images = contents_of(data)
    values = [datum(it, label) for label, it in enumerate(images)]
    write_lmdb(run.data / "train_lmdb", values)
    text = run(program("docs/lmdb.md"), "data, labels = train().run()", SHAPES)
    assert max(shapes_by_label(text, images)) > 64


@pytest.fixture
def cats(run, data):
    """The JPEGs of a Parquet file as datasets writes it; their classes are c0, c1 and so on."""
    images = contents_of(data)
    (run.data / "cats").mkdir(exist_ok=True)
    classes = {"names": [f"c{n}" for n in range(len(images))], "_type": "ClassLabel"}
    about = {"info": {"features": {"image": {"_type": "Image"}, "label": classes}}}
    cells = [{"bytes": it, "path": None} for it in images]
    columns = pa.table({"image": cells, "label": range(len(images))})
    columns = columns.replace_schema_metadata({"huggingface": json.dumps(about)})
    write_table(run.data / "cats/train-0.parquet", columns)
    return images


def test_the_images_of_the_parquet_page_are_decoded(run, cats):
    text = run(program("docs/parquet.md"), "data, labels = pipe.run()", SHAPES)
    names, _, shapes = text.partition("\n")
    assert names == str(tuple(f"c{n}" for n in range(len(cats))))
    assert max(shapes_by_label(shapes, cats)) > 64


@pytest.mark.long
def test_the_rows_of_the_parquet_page_are_those_of_datasets(run, cats, tmp_path):
    pytest.importorskip("datasets", reason="no datasets: pip install datasets")
    variables = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    compare = program("docs/parquet.md", 1)
    assert run(compare, quiet=False, **variables) == f"{len(cats)} rows are equal\n"
    with pytest.raises(AssertionError, match=r"status 1[^$]*\nAssertionError: 1\n"):
        run(compare.replace("label[0])", "1 - label[0])"), quiet=False, **variables)


def test_the_images_of_the_page_of_shards_are_decoded(run, data):
    images = contents_of(data)
    samples = [{"image": it, "label": struct.pack("<q", n)} for n, it in enumerate(images)]
    columns = {"image": ("jpeg", None), "label": ("int", 8)}
    write_mds(run.data / "mds/train", columns, {"shard.00000.mds": samples})
    text = run(program("docs/shards.md"), "data, labels = pipe.run()", SHAPES)
    assert max(shapes_by_label(text, images)) > 64


def test_a_mixture_of_files_a_tar_and_shards_has_their_bytes(run, data):
    images = contents_of(data)
    parts = [images, images[:9], images[9:20]]
    write_tar(run.data / "web.tar", [(f"{n}.jpg", it) for n, it in enumerate(parts[1])])
    rows = [{"image": it} for it in parts[2]]
    write_mds(run.data / "mds", {"image": ("jpeg", None)}, {"shard.00000.mds": rows})
    read = "from zlib import crc32\nread, which = batches().run()\n"
    read += "print([(int(which.at(n)[0]), crc32(read.at(n))) for n in range(64)])"
    given = ast.literal_eval(run(program("docs/sampling.md", 1), read))
    assert {source for source, _ in given} == {0, 1, 2}
    known = [{*map(zlib.crc32, part)} for part in parts]
    assert [source for source, crc in given if crc not in known[source]] == []


def test_the_statistics_of_a_running_reader_go_to_the_tools_that_people_use(run):
    """TensorBoard is a stand-in."""
    show, _ = snippets("docs/slow.md", "python")
    board, prometheus, _ = snippets("docs/observability.md", "python")
    lines = run(show).splitlines()
    assert re.fullmatch(r"20 batches, .* of \d batches ready when asked", lines[0])
    assert [line.split()[0] for line in lines[2:5]] == ["decoding", "opening", "reading"]
    assert lines[-1].startswith("verdict: the storage ")
    lines = run(WRITERS, board, FIRST, prometheus, ASK).splitlines()
    assert re.fullmatch(r"tensorboard dali_storage/Reader/batches \d\.0 0", lines[0])
    assert re.fullmatch(r'dali_storage_batches_total\{reader="Reader"\} 100\d\.0', lines[1])


WRITERS = """
import sys
from types import ModuleType
first = []
class SummaryWriter:
    def __init__(self, folder):
        pass
    def add_scalar(self, *row):
        first.append(row)
sys.modules["torch.utils.tensorboard"] = module = ModuleType("torch.utils.tensorboard")
module.SummaryWriter = SummaryWriter
"""
FIRST = "print('tensorboard', *first[0])"
ASK = """
import urllib.request
with urllib.request.urlopen("http://127.0.0.1:9400") as answer:
    text = answer.read().decode()
print(*[line for line in text.splitlines() if line.startswith("dali_storage_batches_total")])
"""


def test_the_orders_of_the_sampling_page_are_given(run, data, tmp_path):
    lengths = list(map(len, contents_of(data)))
    np.save(tmp_path / "lengths.npy", lengths)
    read = "print([data.shape()[n][0] for data in samples().run()[:1] for n in range(64)])"
    shapes = ast.literal_eval(run(program("docs/sampling.md", 2), read))
    ascents = [later >= earlier for earlier, later in itertools.pairwise(shapes)]
    assert ascents.count(False) <= 64 // (SAMPLES // 10)


def test_the_shards_of_the_containers_page_are_trained_with(run):
    pack, train, _ = snippets("docs/containers.md", "python")
    run(pack)
    assert make_indexes([str(tar) for tar in (run.data / "shards").iterdir()]) == 0
    show = "        print(images.shape, labels.tolist())"
    batches = [line.split("]) ") for line in run(train, show).splitlines()]
    assert [shape for shape, _ in batches] == ["torch.Size([64, 224, 224, 3"] * 3
    labels = [label for _, text in batches for label in ast.literal_eval(text)]
    assert labels != sorted(labels)
    assert {*labels} == {0, 1}
    assert max(labels.count(0), labels.count(1)) <= SAMPLES // 2
    (compare,) = snippets("docs/prove.md", "python")
    printed = run(compare, quiet=False)  # DALI warns that it makes the indexes
    assert printed == f"{SAMPLES} samples are equal\n"
    other = compare.replace("shuffle=True", "shuffle=webdataset is readers.webdataset")
    with pytest.raises(AssertionError, match=r"status 1[^$]*\nAssertionError\n"):
        run(other)


@pytest.mark.long
def test_the_text_labels_of_the_containers_page_are_numbers(run, data, tmp_path):
    with tarfile.open(run.data / "a.tar", "w") as tar:
        for number, path in enumerate(sorted(data.rglob("*.jpg"))):
            (tmp_path / "label").write_text(str(70 + 3 * number))
            tar.add(path, f"{number}.jpg")
            tar.add(tmp_path / "label", f"{number}.cls")
    *_, code = snippets("docs/containers.md", "python")
    resume = """
def labels(pipe):
    return pipe.run()[1].as_array().ravel().tolist()
pipe = train(enable_checkpointing=True)
begun = labels(pipe)
print(begun + labels(train(checkpoint=pipe.checkpoint(), enable_checkpointing=True)))
"""
    numbers = ast.literal_eval(run(code, resume))
    assert numbers == [70 + 3 * number for number in range(128)]


def test_the_videos_of_the_page_of_other_formats_are_read_in_the_windows_of_dali(run):
    frames = {run.data / "a.avi": 250, run.data / "b.avi": 90}
    for path, count in frames.items():
        write_video(path, count)
    names = "import hashlib\nvideos, starts = clips(batch_size=36).run()\n"
    names += "for n in range(36):\n    data = bytes(videos.at(n))\n"
    names += "    print(int(starts.at(n)[0]), hashlib.sha256(data).hexdigest())"
    ours = [line.split() for line in run(program("docs/other-formats.md"), names).splitlines()]
    windows = {"sequence_length": 16, "stride": 2, "step": 8, "enable_frame_num": "scalar"}
    reader = fn.experimental.readers.video
    [theirs] = take(build(reader, 36, {}, filenames=[*map(str, frames)], **windows), 1)
    expected = [
        [str(*np.frombuffer(start, np.int32)), hashlib.sha256(video).hexdigest()]
        for (*_, video), (*_, start) in zip(*theirs, strict=True)
    ]
    assert sorted(ours) == sorted(expected)


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


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_the_blobs_of_the_lance_section_are_read(version, tmp_path):
    """In 2.2 beside the rows, in a file with others, and alone. One is null, one deleted."""
    lance = pytest.importorskip("lance", reason="Lance is not installed: pip install pylance")
    values = [bytes([n]) * size for n, size in enumerate([5, 0, 100_000, 90_000, 5_000_000, 7])]
    values[5:] = [None, b"deleted"]
    if version == "2.2":
        field, column = lance.blob_field("image"), lance.blob_array(values)
    else:
        metadata = {"lance-encoding:blob": "true"}
        field = pa.field("image", pa.large_binary(), metadata=metadata)
        column = pa.array(values, pa.large_binary())
    table = pa.table([column, pa.array(range(7))], schema=pa.schema([field, ("n", pa.int64())]))
    data = lance.write_dataset(table, tmp_path, data_storage_version=version, max_rows_per_file=4)
    data.delete("n = 6")
    names = {}
    exec(program("docs/other-formats.md", 1), names)
    found = names["blobs"](str(tmp_path), "image")
    assert contents(build(readers.records, 6, {}, **found))[0] == [*values[:5], b""]
    assert any(it.endswith(".blob") for it in found["files"]) == (version == "2.2")


@pytest.mark.parametrize(
    "diff", [*snippets("README.md", "diff"), *snippets("docs/start.md", "diff")]
)
def test_the_diff_of_a_page_reads_every_sample(diff, run, data):
    """Its new side, in a pipeline."""
    new = "".join(f"    {line[1:]}\n" for line in diff.splitlines() if line[0] != "-")
    made = f"""
from nvidia.dali import pipeline_def
@pipeline_def(batch_size={SAMPLES}, num_threads=1, device_id=None)
def diff():
{new}    return jpegs, labels
jpegs, labels = diff().run()
print(sum(labels.as_array().ravel().tolist()), sum(it[0] for it in jpegs.shape()))
"""
    assert run(made) == f"{SAMPLES // 2} {sum(map(len, contents_of(data)))}\n"


def test_the_pipeline_of_the_loaders_page_is_trained_with(run):
    lines = run(program("docs/loaders.md", 1)).splitlines()
    stats = r"[\d,]+ samples/s · waited \d+% · of it storage \d+% → \w+-bound: .*"
    assert len([line for line in lines if re.fullmatch(stats, line)]) == 3


def test_the_samples_of_a_batch_that_fails_are_named(run):
    failing, replacing = snippets("docs/bad-samples.md", "python")
    broken = run.data / "broken"
    for number in range(66):
        (broken / "class0").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30)).save(broken / f"class0/{number:02}.jpg")
    (broken / "class0/09.jpg").write_bytes(b"<html>")
    with run.instead("train", "broken"):
        caught = textwrap.indent(failing, "    ")
        refused = 'except RuntimeError as error:\n    print("decoders" in str(error))'
        *its, last = run(f"try:\n{caught}{refused}").splitlines()
        assert its == [f"({n}, '/data/train/class0/{n:02}.jpg')" for n in range(32)]
        assert last == "True"
        text = run(replacing, quiet=False)
    assert text == "9 /data/train/class0/09.jpg it is HTML or XML\n"


def test_the_epoch_of_the_page_on_receipts_is_complete(run, data, tmp_path):
    whole, epoch = str(tmp_path / "train.json"), str(tmp_path / "epoch.json")
    assert receipt.main([str(data), "--bytes", "-o", whole]) == 0
    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "RANK": "0", "WORLD_SIZE": "1"}
    code = program("docs/receipts.md")
    run(code, "dist.destroy_process_group()", quiet=False, **alone)  # gloo warns
    assert receipt.main(["compare", whole, epoch]) == 0


@pytest.mark.long
def test_the_folders_of_the_loaders_page_are_read(run, data):
    synsets = run.data / "imagenet" / "train"
    synsets.mkdir(parents=True)
    for number, folder in enumerate(sorted(data.iterdir())):
        (synsets / f"n{number:08d}").symlink_to(f"../../photos/{folder.name}")
    read = "print(images.dtype, labels.shape, len(train), len(val), next(iter(train))[0].shape)"
    text = run(program("docs/loaders.md"), read)
    assert text == "torch.float32 torch.Size([64]) 3 4 torch.Size([64, 3, 176, 176])\n"


@pytest.mark.long
def test_the_evaluator_of_the_page_on_speed_takes_loaders(run):
    show = "    print(images.flatten()[:99].sum())"
    text = run(program("docs/slow.md", 1), show, quiet=False)
    assert len(text.splitlines()) == 3
    assert len({*text.splitlines()}) <= 2  # of an epoch of three batches


def test_a_step_of_slurm_reads_its_shard(run):
    show = "meta = train().reader_meta('Reader')\n"
    show += "print(meta['shard_id'], meta['number_of_shards'])"
    slurm = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
    assert run(program("docs/scaling.md"), show, **slurm) == "1 2\n"


RECORDED = """
from nvidia.dali import Pipeline
given, of_dali = [], Pipeline.run
def recording(pipe):
    batch = of_dali(pipe)
    given.append(batch[1].as_array().ravel().tolist())
    return batch
Pipeline.run = recording
"""


@pytest.mark.long
def test_the_program_of_the_page_on_resuming_gives_each_sample_once(run):
    """On one rank, again, and on two; it prints what the page shows."""
    (code,) = snippets("docs/resume.md", "python")
    for number in range(1000):  # a class each, so that a label is a sample
        (run.data / f"many/{number:03}").mkdir(parents=True)
        (run.data / f"many/{number:03}/x.jpg").write_bytes(b"x")

    def of_rank(rank, ranks):
        slurm = {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(ranks)}
        text = run(RECORDED, code, "print(given)", **slurm)
        printed, _, given = text.rpartition("[[")
        return printed, ast.literal_eval(f"[[{given}")

    with run.instead("train", "many"):
        first, second = of_rank(0, 1), of_rank(0, 1)
        other, zero, last = of_rank(1, 2), of_rank(0, 2), of_rank(0, 1)
    assert [first[0] + second[0]] == snippets("docs/resume.md", "text")
    epochs = [it for each in (first, second) for batch in each[1] for it in batch]
    assert sorted(epochs[:1000]) == [*range(1000)]
    both = [it for pair in zip(zero[1], other[1], strict=True) for batch in pair for it in batch]
    rest = [it for batch in last[1] for it in batch]
    assert sorted(epochs[1024:] + both + rest[:104]) == [*range(1000)]


@pytest.mark.long
def test_the_loaders_of_torchrun_are_saved_and_go_on(run):
    show = """
epoch = iter(train)
next(epoch)
save("checkpoint")
rest = [labels.tolist() for _, labels in epoch]
restore("checkpoint")
print([labels.tolist() for _, labels in train] == rest, len(rest))
train.close()
distributed.destroy_process_group()
"""
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    variables |= {"MASTER_PORT": "29400", "GLOO_SOCKET_IFNAME": "lo"}
    assert run(program("docs/scaling.md", 1), show, quiet=False, **variables) == "True 2\n"


@pytest.mark.long
def test_the_loader_of_lightning_is_trained_with(run):
    text = run(program("docs/scaling.md", 2), "print(trainer.global_step)", quiet=False)
    assert text.splitlines()[-1] == "6"


SERVED = f"""
import subprocess, sys
ROOT = {str(ROOT)!r}
command = [sys.executable, "-m", "tests.kit.objects.fault_server", "--port", "9000"]
command += ["--root", "/data/buckets", "--until-eof"]
pipe = subprocess.PIPE
server = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
assert server.stdout.readline() == "http://127.0.0.1:9000\\n"
"""


@pytest.fixture(scope="module")
def bucket(programs):
    """A directory that is served as the bucket."""
    path = programs.data / "buckets" / "bucket"
    path.mkdir(parents=True)
    return path


def test_the_pipeline_of_the_object_store_page_delivers_its_samples(run, bucket, data):
    shutil.copytree(data, bucket / "train")
    code, _ = snippets("docs/object-store.md", "python")
    show = "images, labels = train().run()\nprint(len(images), labels.as_array().sum())"
    images, ones = run(SERVED, code, show, **environment("http://127.0.0.1:9000")).split()
    assert images == "64"
    assert 0 < int(ones) < 64


@pytest.mark.long
def test_the_containers_of_the_object_store_page_are_read(run, bucket, data):
    (bucket / "shards").mkdir()
    (run.data / "indexes").mkdir()
    for number, path in enumerate(sorted(data.rglob("*.jpg"))[:100]):
        members = [(f"{number}.jpg", path.read_bytes()), (f"{number}.cls", b"%d" % number)]
        write_tar(bucket / f"shards/{number:05d}.tar", members)
        index = run.data / f"indexes/{number:05d}.idx"
        index_by_wds2idx(bucket / f"shards/{number:05d}.tar").rename(index)
    _, code = snippets("docs/object-store.md", "python")
    show = "print([int(bytes(it)) for it in train().run()[1]])"
    labels = ast.literal_eval(run(SERVED, code, show, **environment("http://127.0.0.1:9000")))
    assert len({*labels}) == 64
    assert labels != sorted(labels)


def test_a_signal_prints_the_stacks_and_the_report():
    (code,) = [it for it in snippets("docs/observability.md", "python") if "report_on" in it]
    code += "\nsignal.raise_signal(signal.SIGUSR2)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert re.fullmatch(r"(?s).*most recent call first.*dali_storage: 0 open .*\n", done.stderr)
    assert done.returncode == 0
