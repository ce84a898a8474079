"""The documents are true: snippets run, tables match signatures, links and commands exist."""

from __future__ import annotations

import ast
import io
import os
import pkgutil
import re
import shlex
import textwrap
import tomllib
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image

import bmap_tools.__main__
from benchmarks import arguments
from dali_storage.cli import index
from dali_storage.cli.index import main as make_indexes
from dali_storage.contract import registry
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.reader import Reader
from dali_storage.testing import ReaderTests
from tests.kit import option_tables
from tests.kit.paths import ROOT

DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ]
)
HEADINGS = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def text_of(document: str) -> str:
    return (ROOT / document).read_text()


def snippets(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(document), re.DOTALL | re.MULTILINE)


def prose_of(document: str) -> str:
    """A document without its code blocks."""
    return re.sub(r"^```.*?^```", "", text_of(document), flags=re.DOTALL | re.MULTILINE)


def commands() -> list[tuple[str, list[str]]]:
    """All shell commands of all documents, split into words, without their comments."""
    lines = [
        (document, line)
        for document in DOCUMENTS
        for snippet in snippets(document, "sh")
        for line in snippet.replace("\\\n", "").splitlines()
        if line.strip()
    ]
    inline = [
        (document, code)
        for document in DOCUMENTS
        for code in re.findall(r"`(make [^`]+)`", prose_of(document))
    ]
    return [
        (document, words)
        for document, line in lines + inline
        if (words := shlex.split(line, comments=True))
    ]


def named(commands: list[tuple[str, list[str]]], *start: str) -> list[Any]:
    """Those of the commands that start with these words, as parameters of a test."""
    found = [(document, words) for document, words in commands if words[: len(start)] == [*start]]
    return [
        pytest.param(words[len(start) :], id=f"{document}: {shlex.join(words)}")
        for document, words in found
    ]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """20 JPEGs in two classes."""
    root = tmp_path / "data"
    for number in range(20):
        folder = root / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40 + number, 30), (number, 0, 99)).save(folder / f"{number}.jpg")
    return root


def run(code: str, cwd: Path = ROOT) -> str:
    """What a program prints. It runs in this process: to import what it needs takes seconds."""
    with redirect_stdout(io.StringIO()) as printed, chdir(cwd), patch.dict(os.environ):
        exec(compile(code, "snippet", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


class TestTheBackendOfTheContributingPage(ReaderTests):
    def open(self, catalog: Catalog) -> Reader:
        names: dict[str, Any] = {}
        exec(snippets("CONTRIBUTING.md", "python")[0], names)
        reader: Reader = names["PreadReader"](catalog)
        return reader


def test_the_backend_of_the_contributing_page_has_at_most_40_lines() -> None:
    assert len(snippets("CONTRIBUTING.md", "python")[0].splitlines()) <= 40


def test_the_backend_of_the_contributing_page_needs_no_packaging(data: Path) -> None:
    backend, pipeline, _ = snippets("CONTRIBUTING.md", "python")
    code = f"{backend}\n{pipeline}".replace("/data/train", str(data))
    code = code.replace("batch_size=64", "batch_size=20")
    paths = sorted(data.rglob("*.jpg"))
    printed = run(f"{code}\nprint([bytes(data.at(i)) for i in range(20)], len(labels))")
    assert printed == f"{[path.read_bytes() for path in paths]} 20\n"


def test_the_contributing_page_names_no_inner_module() -> None:
    assert not re.findall(
        r"dali_storage\.(?:contract|reading|samples|order)\b", text_of("CONTRIBUTING.md")
    )


def test_the_tests_of_the_contributing_page_are_collected() -> None:
    names: dict[str, Any] = {"PreadReader": Reader}
    exec(snippets("CONTRIBUTING.md", "python")[2], names)
    assert issubclass(names["TestPread"], ReaderTests)


def test_the_records_of_the_containers_page_are_read(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [path.read_bytes() for path in sorted(data.rglob("*.jpg"))]
    monkeypatch.chdir(tmp_path)
    for name, part in (("a.bin", images[:10]), ("b.bin", images[10:])):
        Path(name).write_bytes(b"".join(part))
    sizes = np.array(list(map(len, images)))
    np.save("sizes.npy", sizes)
    np.save("offsets.npy", np.concatenate([np.cumsum(part) - part for part in np.split(sizes, 2)]))
    np.save("file_ids.npy", np.arange(20) // 10)
    np.save("labels.npy", np.arange(20) + 100)
    names: dict[str, Any] = {}
    exec(snippets("docs/containers.md", "python")[2], names)
    decoded, labels = names["images"](batch_size=20).run()
    for number, label in enumerate(labels.as_array().ravel().tolist()):
        expected = Image.open(io.BytesIO(images[label - 100]))
        assert decoded.at(number).shape == (expected.height, expected.width, 3)


def test_the_shards_of_the_containers_page_are_trained_with(data: Path, tmp_path: Path) -> None:
    pack, train, _ = snippets("docs/containers.md", "python")
    for there, here in (
        ("/data/train", str(data)),
        ("/data/shards", str(tmp_path / "shards")),
        ("device_id=0", "device_id=None"),
        ("batch_size=64", "batch_size=4"),
        ('device="mixed"', 'device="cpu"'),
        ("pass  # train", "print(images.shape, labels.tolist())"),
    ):
        assert there in pack + train
        pack, train = pack.replace(there, here), train.replace(there, here)
    run(pack)
    assert make_indexes([str(tar) for tar in (tmp_path / "shards").iterdir()]) == 0
    batches = [line.split("]) ") for line in run(train).splitlines()]
    assert [shape for shape, _ in batches] == ["torch.Size([4, 224, 224, 3"] * 5
    labels = [label for _, text in batches for label in ast.literal_eval(text)]
    assert labels != sorted(labels)
    assert sorted(labels) == [0] * 10 + [1] * 10


def test_every_python_snippet_is_known_to_a_test() -> None:
    assert {
        name: len(snippets(name, "python")) for name in DOCUMENTS if "```python" in text_of(name)
    } == {
        "CONTRIBUTING.md": 3,
        "README.md": 1,
        "docs/bmap.md": 1,
        "docs/containers.md": 3,
        "docs/loaders.md": 5,
        "docs/scaling.md": 5,
        "docs/object-store.md": 2,
        "docs/xnvme.md": 1,
    }


def test_the_pipeline_of_the_readme_delivers_every_sample(data: Path) -> None:
    (code,) = snippets("README.md", "python")
    for there, here in (("batch_size=64", "batch_size=4"), ("/data/train", str(data))):
        assert there in code
        code = code.replace(there, here)
    assert run(code).splitlines() == ["torch.Size([4, 224, 224, 3]) torch.Size([4, 1])"] * 5


def test_the_diff_of_the_readme_reads_every_sample(data: Path) -> None:
    """Its new side, in a pipeline."""
    (diff,) = snippets("README.md", "diff")
    new = [line[1:] for line in diff.splitlines() if line[0] != "-"]
    assert "/data/train" in new[1]
    code = textwrap.indent("\n".join(new).replace("/data/train", str(data)), "    ")
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


def test_the_pipeline_of_the_loaders_page_is_trained_with(data: Path) -> None:
    code = snippets("docs/loaders.md", "python")[2]
    for there, here in (
        ("device_id=0", "device_id=None"),
        ("batch_size=64", "batch_size=4"),
        ('device="mixed"', 'device="cpu"'),
        ("/data/train", str(data)),
        ("pass  # train", "print(images.shape, labels.shape)"),
    ):
        assert there in code
        code = code.replace(there, here)
    lines = run(code).splitlines()
    assert lines[:5] == ["torch.Size([4, 224, 224, 3]) torch.Size([4])"] * 5
    assert re.match(r"[\d,]+ samples/s · waited \d+% · of it storage \d+% → \w+-bound: ", lines[5])
    assert len(lines) == 18


def test_the_folders_of_the_loaders_page_are_read(data: Path, tmp_path: Path) -> None:
    synsets = tmp_path / "synsets" / "train"
    synsets.mkdir(parents=True)
    for number, folder in enumerate(sorted(data.iterdir())):
        (synsets / f"n{number:08d}").symlink_to(folder)
    code = snippets("docs/loaders.md", "python")[0].replace("batch_size=64", "batch_size=4")
    for path, here in (("train", data), ("val", data), ("imagenet", synsets.parent)):
        code = code.replace(f"/data/{path}", str(here))
    code = code.replace("    pass", "    print(images.shape, labels.dtype)")
    lines = run(f"{code}\nprint(len(train), len(val), next(iter(train))[0].shape)").splitlines()
    assert lines[:-1] == ["torch.Size([4, 3, 224, 224]) torch.int64"] * 5
    assert lines[-1] == "5 5 torch.Size([4, 3, 176, 176])"


def test_the_transforms_of_the_loaders_page_work(data: Path) -> None:
    code = snippets("docs/loaders.md", "python")[1]
    code = code.replace("batch_size=64", "batch_size=4").replace("/data/train", str(data))
    assert run(f"{code}\nprint(next(iter(loader))[0].shape)") == "torch.Size([4, 3, 160, 160])\n"


def test_the_tools_of_the_loaders_page_take_loaders_and_pipelines(data: Path) -> None:
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


def without_a_gpu(code: str, data: Path) -> str:
    for there, here in (
        ("/data/train", str(data)),
        ("device_id=0", "device_id=None"),
        ("num_threads=8", "num_threads=1"),
        ("batch_size=64", 'batch_size=4, device="cpu"' if "train=True" in code else "batch_size=4"),
        ("batch_size=2048 // shard.world", 'batch_size=4 // shard.world, device="cpu"'),
        ('"nccl"', '"gloo", store=distributed.HashStore(), rank=0, world_size=1'),
        ('strategy="ddp", devices=8, num_nodes=2, max_epochs=90', "max_epochs=1, **quiet"),
        ("pass  # train", "print(*images.shape)"),
    ):
        code = code.replace(there, here)
    return code


def test_a_step_of_slurm_reads_its_shard_and_another_number_goes_on(data: Path) -> None:
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


def test_the_loaders_of_torchrun_and_lightning_are_saved_and_trained_with(data: Path) -> None:
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


@pytest.mark.parametrize("document", ["README.md", "docs/containers.md", "docs/object-store.md"])
def test_the_diff_is_a_change_of_valid_code(document: str) -> None:
    (diff,) = snippets(document, "diff")
    for sign, imported in (("-", "nvidia.dali.fn"), ("+", "dali_storage")):
        kept = [line[1:] for line in diff.splitlines() if line[0] in (" ", sign)]
        if kept[-1].endswith(","):
            kept[-1] = kept[-1].rstrip(",") + ")"  # the added lines end the call
        assert imported in ast.unparse(ast.parse("\n".join(kept)))


def test_the_readme_can_be_read_at_once() -> None:
    """Words as a reader sees them: of a link only its text; marks of Markdown are no words."""
    assert len(text_of("README.md").splitlines()) <= 75
    rendered = re.sub(r"\]\([^)]*\)|^```\w*$", "", text_of("README.md"), flags=re.MULTILINE)
    assert len([word for word in rendered.split() if re.search(r"\w", word)]) <= 600


def figures_of_the_readme() -> list[list[str]]:
    """The rows of its table of throughput: leg, images a second, ratio, CPU seconds a GB, needs."""
    head = r"\|[^|]+\| images/s \| x DALI \| CPU s/GB \|.*\n\|[-|]+\n"
    (table,) = re.findall(rf"^{head}((?:\|.*\n)+)", text_of("README.md"), re.MULTILINE)
    return [line.strip("| ").split(" | ") for line in table.splitlines()]


def test_the_ratios_of_the_readme_divide() -> None:
    rows = figures_of_the_readme()
    images = [float(row[1].replace(",", "")) for row in rows]
    ratios = [f"{each / images[0]:.1f}" for each in images]
    assert [row[2] for row in rows] == ratios
    headline = re.search(r"([\d.]+)x the images per second", text_of("README.md"))
    assert headline
    assert headline[1] in ratios


def test_every_figure_of_the_readme_was_measured() -> None:
    measured = text_of("docs/benchmarks.md")
    for _, images, _, seconds, *_ in figures_of_the_readme():
        assert re.search(rf"\| {images} \|.*\| {re.escape(seconds)} \|", measured), images
    claims = re.findall(
        r"\d[\d,.]*(?=x\b| ?(?:%|[KMG]B\b|images\b|cores?\b|times\b|JPEGs))", prose_of("README.md")
    )
    assert claims
    for claim in claims:
        assert re.search(rf"(?<![\d.,]){re.escape(claim)}(?![.,]?\d)", measured), claim


# prefix/ begins the key of an object.
PATHS = re.compile(r"`((?:\w+/)*\w+\.(?:py|cu|toml)|(?!prefix/)(?:\w+/)+)`")


@pytest.mark.parametrize(
    "document", ["CONTRIBUTING.md", *filter(re.compile("docs/").match, DOCUMENTS)]
)
def test_the_paths_of_the_documents_exist(document: str) -> None:
    """Whole paths, and ends of paths."""
    folders = "dali_storage", "backends", "bmap_tools", "benchmarks", "tests", "examples"
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    known = {f"/{path.relative_to(ROOT)}" for path in [*files, *ROOT.iterdir()]}
    assert [
        path
        for path in PATHS.findall(prose_of(document))
        if not any(name.endswith(f"/{path.rstrip('/')}") for name in known)
    ] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_names_of_the_documents_exist(document: str) -> None:
    for name in re.findall(r"\bdali_storage(?:\.\w+)+", prose_of(document)):
        if name != "dali_storage.backends.x":
            pkgutil.resolve_name(name)


def test_the_tables_of_options_are_those_of_the_constructors() -> None:
    same = option_tables.page() == option_tables.PAGE.read_text()
    assert same, "docs/backends.md is out of date: run python -m tests.kit.option_tables"


def test_every_backend_is_in_the_first_table_of_the_backends_page() -> None:
    table = re.findall(r"^\| `([\w-]+)`", text_of("docs/backends.md").split("\n## ")[0], re.M)
    assert set(registry.names()) <= set(table)


def anchors(document: str) -> set[str]:
    """The anchors that a Markdown renderer makes of the headings."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in HEADINGS.findall(text_of(document))
    }


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(document)):
        if re.match(r"https://[\w.-]+(/|$)", target):
            continue  # no network in a test
        path, _, anchor = target.partition("#")
        there = (ROOT / document).parent / path if path else ROOT / document
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there.resolve().relative_to(ROOT).as_posix()), target


@pytest.mark.parametrize("words", named(commands(), "make"))
def test_the_targets_of_make_exist(words: list[str]) -> None:
    assert re.search(rf"^{words[0]}:", text_of("Makefile"), re.MULTILINE)


@pytest.mark.parametrize("words", named(commands(), "python", "-m", "bmap_tools"))
def test_the_command_lines_of_bmap_tools_are_accepted(words: list[str]) -> None:
    assert bmap_tools.__main__.parser().parse_args(words).command == words[0]


@pytest.mark.parametrize("words", named(commands(), "python", "-m", "dali_storage", "index"))
def test_the_command_lines_that_make_indexes_are_accepted(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(os.path, "isdir", ["/data/train", "DIR"].__contains__)
    monkeypatch.setattr(index.index_samples, "main", lambda root, given: done.append("main") or 0)
    monkeypatch.setattr(index.index_samples, "verify", lambda files: done.append("verify") or 0)
    monkeypatch.setattr(index, "write", lambda *_: done.append("write"))
    assert make_indexes(words) == 0
    assert len(done) == 1


@pytest.mark.parametrize("words", named(commands(), "python", "benchmark.py"))
def test_the_command_lines_of_the_benchmark_are_accepted(words: list[str]) -> None:
    if words[-1] == "--help":
        words = words[:-1]
    assert arguments.parser().parse_args(words).command in words


def test_every_other_command_is_one_that_is_meant() -> None:
    others = {" ".join(words[:2]) for _, words in commands()} - {"python -m", "python benchmark.py"}
    assert {start for start in others if not start.startswith("make ")} == {
        "pip install",
        "docker build",
        "docker run",
        "git clone",  # how libxnvme is built
        "meson setup",
        "meson compile",
        "export XNVME_LIBRARY_PATH=$PWD/xnvme/build/lib/libxnvme.so",
        "umount /data",  # how a controller is taken from the kernel
        "sysctl vm.nr_hugepages=512",
        "driverctl --nosave",
        "torchrun --nnodes",
        "srun --nodes",
    }
    modules = {words[2] for _, words in commands() if words[:2] == ["python", "-m"]}
    assert modules == {"bmap_tools", "dali_storage", "pytest"}


def test_the_extras_that_are_installed_exist() -> None:
    extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
    for document in ("README.md", "docs/backends.md", "docs/object-store.md"):
        groups = re.findall(r"(?:dali-storage|'\.)\[([\w,-]+)\]", text_of(document))
        assert groups
        assert {extra for group in groups for extra in group.split(",")} <= set(extras)
