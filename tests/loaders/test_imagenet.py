"""imagenet(): the layouts of ILSVRC2012; what is missing or too much is refused by name."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

from benchmarks import dataset
from dali_storage.loaders import imagenet
from dali_storage.loaders.transforms import CentreCrop

SYNSETS = ["n01440764", "n01443537", "n02102040", "n03000684"]
SMALL: dict[str, Any] = {"device": "cpu", "num_threads": 1, "transforms": [CentreCrop(8)]}
KAGGLE = "ILSVRC/Data/CLS-LOC"


def write(path, brightness):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), brightness, np.uint8)).save(path, "PNG")  # decoded exactly


def write_split(folder, per_class, *, flat=False):
    """Images as bright as the number of their class; returns the synset of each name."""
    names = {}
    for number in range(per_class * len(SYNSETS)):
        synset = SYNSETS[number * 7 % len(SYNSETS)]
        name = f"ILSVRC2012_val_{number:08d}"
        write(folder / ("" if flat else synset) / f"{name}.JPEG", SYNSETS.index(synset))
        names[name] = synset
    return names


@pytest.fixture
def classic(tmp_path):
    write_split(tmp_path / "train", 3)
    write_split(tmp_path / "val", 2)
    return tmp_path


@pytest.fixture
def flat(tmp_path):
    write_split(tmp_path / "train", 3)
    names = write_split(tmp_path / "val", 2, flat=True)
    write_solution(tmp_path / "LOC_val_solution.csv", names)
    return tmp_path


def write_solution(path, names):
    rows = [f"{name},{synset} 1 2 3 4 {synset} 5 6 7 8 \n" for name, synset in names.items()]
    path.write_text("".join(["ImageId,PredictionString\n", *reversed(rows)]))


def check(root, split, images):
    """Every image of a split is delivered once, with the label that its pixels show."""
    with imagenet(root, split, batch_size=3, last_batch="partial", **SMALL) as loader:
        assert list(loader.classes) == SYNSETS
        shown, labels = [], []
        for batch, given in loader:
            shown += batch[:, 0, 0, 0].tolist()
            labels += given.tolist()
        assert shown == labels
        assert sorted(labels) == sorted(list(range(4)) * (images // 4))


def test_class_directories_are_labelled_by_their_synsets(classic):
    check(classic, "train", 12)
    check(classic, "val", 8)
    assert ImageFolder(str(classic / "train")).classes == SYNSETS
    shutil.rmtree(classic / "train")  # then the synsets are those of val
    check(classic, "val", 8)


def test_kaggles_archive_is_read_from_both_of_its_directories(classic, tmp_path_factory):
    root = tmp_path_factory.mktemp("kaggle")
    shutil.copytree(classic / "train", root / KAGGLE / "train")
    names = write_split(root / KAGGLE / "val", 2, flat=True)
    write_solution(root / "LOC_val_solution.csv", names)
    check(root, "train", 12)
    check(root, "val", 8)
    (root / "LOC_val_solution.csv").rename(root / KAGGLE / "LOC_val_solution.csv")
    check(root / KAGGLE, "val", 8)


@pytest.mark.parametrize("place", [".", "val"])
@pytest.mark.parametrize(
    "name", ["imagenet_2012_validation_synset_labels.txt", "synset_labels.txt"]
)
def test_a_flat_val_is_labelled_by_a_list_of_synsets(flat, name, place):
    lines = (flat / "LOC_val_solution.csv").read_text().splitlines()[1:]
    (flat / "LOC_val_solution.csv").unlink()
    synsets = dict(line.split(",") for line in lines)
    (flat / place / name).write_text("".join(f"{synsets[k][:9]}\n" for k in sorted(synsets)))
    check(flat, "val", 8)


def test_a_flat_val_is_labelled_by_kaggles_file_also_without_train(flat):
    check(flat, "val", 8)
    shutil.rmtree(flat / "train")
    check(flat, "val", 8)


def test_a_part_of_a_flat_val_keeps_its_labels(flat):
    for name in sorted((flat / "val").iterdir())[4:]:
        name.unlink()
    with imagenet(flat, "val", batch_size=8, **SMALL) as loader:
        ((images, labels),) = loader
        assert images[:, 0, 0, 0].tolist() == labels.tolist()
        assert repr(loader) == (
            "<Loader: imagenet val: 4 classes (ILSVRC: 1,000), 4 images (ILSVRC: 50,000)>"
        )


def test_the_repr_says_what_differs_from_ilsvrc(classic):
    with imagenet(classic, "train", batch_size=3, **SMALL) as loader:
        assert repr(loader) == "<Loader: imagenet train: 4 classes (ILSVRC: 1,000)>"
        assert len(loader) == 4  # opens it
        assert repr(loader) == (
            "<Loader: imagenet train: 4 classes (ILSVRC: 1,000), 12 images (ILSVRC: 1,281,167)>"
        )


def test_training_and_evaluation_have_their_presets(classic):
    for split, shuffled in (("train", True), ("val", False)):
        options = {"device": "cpu", "batch_size": 4, "num_threads": 1}
        with imagenet(classic, split, **options) as loader:
            epochs = [[label for _, labels in loader for label in labels.tolist()] for _ in "12"]
            assert tuple(next(iter(loader))[0].shape) == (4, 3, 224, 224)
        assert (epochs[0] != epochs[1]) is shuffled


# What is refused

SOLUTION, TRAIN = "LOC_val_solution.csv", f"train/{SYNSETS[1]}"
NO_LINE = r"csv' has no line `ImageId,PredictionString` for 8 of"
NO_FILE = r"no file of labels: expected LOC_val_solution.csv or imagenet_2012_validation_synset_"
NO_FILE += r"labels.txt or synset_labels.txt here, or in"


def removed(name):
    return lambda root: shutil.rmtree(root / name)


def emptied(name):
    return lambda root: (shutil.rmtree(root / name, ignore_errors=True), (root / name).mkdir())


def image(name):
    return lambda root: write(root / name, 0)


def solution(change):
    """The file of Kaggle's labels has other text."""
    return lambda root: (root / SOLUTION).write_text(change((root / SOLUTION).read_text()))


def short_list(root):
    (root / SOLUTION).unlink()
    (root / "synset_labels.txt").write_text("n01440764\n" * 7)


def not_text(root):
    (root / SOLUTION).write_bytes(b"ImageId,PredictionString\n\xff\xfe,n01440764\n")


WRONG: list[tuple[str, Callable[[Path], object], str, str]] = [
    *(
        ("classic", *it)
        for it in (
            (removed(f"val/{SYNSETS[1]}"), "val", r"compared with train: missing: 'n01443537'$"),
            (image("val/n09999999/a"), "val", r"compared with train: not expected: 'n09999999'$"),
            (image("val/a.JPEG"), "val", r"class directories, and 1 images outside.*'a.JPEG'"),
            (emptied("train/lost+found"), "train", r"not synsets .*: 'lost\+found'.* image_folder"),
            (emptied("train/lost+found"), "val", r"train' has directories that are not synsets"),
            (emptied(TRAIN), "train", r"no images in the class directories 'n01443537'"),
            (emptied("val"), "val", r"val' has neither class directories nor images"),
            (removed("train"), "train", r"neither train nor ILSVRC/Data/CLS-LOC/train in"),
        )
    ),
    *(
        ("flat", change, "val", words)
        for change, words in (
            (lambda root: (root / SOLUTION).unlink(), NO_FILE),
            (solution(lambda it: it[: it[:-1].rindex("\n") + 1]), r"for 1 of .*_val_00000000"),
            (solution(lambda it: it.replace("ImageId", "image")), NO_LINE),
            (solution(lambda it: it.replace(SYNSETS[3], "n09999999")), r"have: 'n09999999'"),
            (solution(lambda it: it.replace(SYNSETS[3], "490")), r"expected synsets, not '490'"),
            (short_list, r"txt' has 7 lines, but there are 8 images"),
            (not_text, NO_LINE),
        )
    ),
]


@pytest.mark.parametrize(("layout", "change", "split", "message"), WRONG)
def test_what_is_missing_or_too_much_is_refused_by_name(request, layout, change, split, message):
    change(root := request.getfixturevalue(layout))
    missing = message.startswith(("neither train nor", "no file of labels"))
    with (
        pytest.raises(FileNotFoundError if missing else ValueError, match=message),
        imagenet(root, split, batch_size=3, **SMALL) as loader,
    ):
        len(loader)


# The demo's data set in these layouts


def make_data_set(monkeypatch, *arguments):
    command = ["benchmarks.dataset", "--layout=imagenet", *arguments]
    monkeypatch.setattr(sys, "argv", command)
    dataset.main()


def test_the_benchmark_makes_data_sets_in_these_layouts(tmp_path, monkeypatch):
    for name, option in (("classic", "--images=6"), ("flat", "--flat-val")):
        root = tmp_path / name
        make_data_set(monkeypatch, str(root), "--classes=3", "--images=6", option)
        for split, count in (("train", 6), ("val", 3)):
            with imagenet(root, split, batch_size=3, **SMALL) as loader:
                labels = [label for _, given in loader for label in given.tolist()]
                assert sorted(labels) == sorted([0, 1, 2] * (count // 3))
                assert loader.classes == dataset.SYNSETS[:3]
        assert any(path.is_dir() for path in (root / "val").iterdir()) is (name == "classic")


def test_the_benchmark_refuses_more_classes_than_it_knows(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="2"):
        make_data_set(monkeypatch, str(tmp_path), "--classes=21")
    assert "classes must be from 1 to 20" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
