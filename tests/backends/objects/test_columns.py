"""Samples of several objects: readers.columns and readers.sequence below URLs, beside local copies.

What is expected is what they give of the same files on disk.
"""

from pathlib import Path

import pytest
from PIL import Image

from dali_storage import ObjectReplacedError, readers
from tests.kit.parity import build, take

TEMPLATES = ["images/train/{}_left.jpg", "masks/{}.png"]


@pytest.fixture
def root(server, tmp_path):
    """Files in directories of several depths, here and below s3://data."""
    for number, key in enumerate(
        (".h/1", ".h/2", "a-b/1", "a/deep/er/2", "a/1", "a/.3", "a/3", "top", "z")
    ):
        for template in TEMPLATES:
            path = tmp_path / template.format(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (2, 3), (number, 5, 8)).save(path)
    (tmp_path / "keys.txt").write_text("z\na/1\na/deep/er/2\n")
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        server.put(f"data/{path.relative_to(tmp_path)}", path.read_bytes())
    return tmp_path


def both(root, operator, arguments):
    """The samples of two batches, if they are the same of `arguments()` of files and objects."""
    of_files, of_objects = (
        take(build(operator, 3, {}, **arguments(at)), 2) for at in (str(root), "s3://data")
    )
    assert of_files == of_objects
    return of_files


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"keys": ["z", "a/1", "a/deep/er/2"]},
        {
            "files": TEMPLATES,
            "keys": "keys.txt",
            "labels": [4, 5, 6],
            "random_shuffle": True,
            "seed": 1,
        },
        {"keys": ["z", "lost", "a/1", "z"], "missing": "skip"},
    ],
    ids=str,
)
def test_objects_that_fit_templates_are_read_as_files_are(root, given):
    assert both(root, readers.columns, lambda at: {"files": TEMPLATES, "file_root": at} | given)


@pytest.mark.parametrize("names", [TEMPLATES, [["masks/z.png", "masks/a/1.png"]] * 2])
def test_whole_urls_are_read_as_whole_paths_are(root, names):
    def whole(names, at):
        return f"{at}/{names}" if isinstance(names, str) else [whole(it, at) for it in names]

    assert both(root, readers.columns, lambda at: {"files": whole(names, at)})


def test_frames_that_are_objects_are_read_as_files_are(root):
    def given(at):
        return {"file_root": f"{at}/masks", "sequence_length": 2}

    (sequences,), *_ = both(root, readers.sequence, given)
    assert [shape for _, shape, _ in sequences] == [(2, 3, 2, 3)] * 3


def test_a_missing_object_is_refused_by_its_url(root, server):
    with pytest.raises(ValueError, match=r"'s3://data/masks/lost\.png' of key 'lost' is missing"):
        build(readers.columns, 1, {}, files=TEMPLATES[1:], file_root="s3://data", keys=["lost"])
    with pytest.raises(ValueError, match=r"0 fit 's3://data/nowhere/{}\.png'"):
        build(readers.columns, 1, {}, files=["nowhere/{}.png"], file_root="s3://data")


def test_objects_are_those_that_were_listed(root, server):
    arguments = {"files": TEMPLATES[1:], "file_root": "s3://data", "name": "R"}
    pipeline = build(readers.columns, 8, {}, **arguments)
    catalog = readers.catalog(pipeline, "R")
    sizes = [Path(root, catalog.name(row).decode()).stat().st_size for row in range(9)]
    assert catalog.sizes.tolist() == sizes
    server.put("data/masks/top.png", b"another")
    with pytest.raises(ObjectReplacedError):
        pipeline.run()
