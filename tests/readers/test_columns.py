"""readers.columns. The oracle is k times fn.readers.file, with one seed."""

import os
import re
from collections import Counter
from functools import partial
from random import Random

import pytest
from nvidia.dali import Pipeline, fn
from PIL import Image

from dali_storage import readers
from dali_storage.contract.errors import RecordError, SampleReplaced
from tests.kit.parity import BACKENDS, build, compare, contents, seeds, some_order
from tests.kit.tiers import by_tier


def by_file(files, *, labels=None, name=None, file_root=None, **order):
    """What people do today: a reader of DALI for each column."""
    given = {"labels": labels, "file_root": file_root, **order}
    nodes = [
        fn.readers.file(files=names, name=f"{name}{number or ''}", **given)
        for number, names in enumerate(files)
    ]
    return [data for data, _ in nodes] + ([nodes[0][1]] if labels is not None else [])


def by_columns(files, templates=None, **given):
    return readers.columns(templates or files, **given)


def write(root, name, data=None):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(name.encode() if data is None else data)
    return name


def some_columns(random, root):
    """Files whose names have keys in a random order, by templates and as lists."""
    count, pieces = random.randint(1, 30), random.randint(1, 4)
    size = random.choice([None, None, 40, 6000])
    parts = random.choice(["{}", "x{}", "a/{}", "{}/{}"])
    keys = sorted({parts.replace("{}", str(it)) for it in random.sample(range(100), count)})
    files, templates = [], []
    for number in range(pieces):
        sides = ("", f"_{number}.b"), (f"c{number}/", ".b"), (f"{number}-", "")
        before, after = random.choice(sides)
        templates.append(f"{before}{{}}{after}")
        files.append([f"{before}{key}{after}" for key in keys])
        for name in files[-1]:
            write(root, name, random.randbytes(size or random.choice([0, 1, 900, 3000])))
    return files, templates


def test_random_columns_are_read_as_dali_reads_files_by_one_seed(tmp_path):
    found = Counter[str]()
    for seed in seeds(by_tier(12, 200)):
        random, root = Random(seed), tmp_path / str(seed)
        files, templates = some_columns(random, root)
        count = len(files[0])
        arguments = {"files": files, "file_root": str(root)}
        arguments |= some_order(random, count, by_container=False)
        arguments |= {"seed": random.choice([0, 7, 2**31 - 1]), "dont_use_mmap": True}
        if random.random() < 0.4:
            arguments["labels"] = [random.randint(-5, 9) for _ in range(count)]

        ours = {"backend": random.choice(["python-file", "memory"])}
        if random.random() < 0.5 and "labels" not in arguments:
            ours["templates"] = templates
        try:
            found[compare(random, by_file, partial(by_columns, **ours), arguments)] += 1
        except BaseException as error:
            error.add_note(f"PARITY=1 PARITY_FROM={seed} repeats it: {templates}, {arguments}")
            raise
    assert found["equal"] + found["restored"] > 0.8 * found.total()


@pytest.fixture
def root(tmp_path):
    """Images and masks of five keys, in two directories; the bytes of a file are its name."""
    for key in ("b/10", "b/9", "a-b/1", "a/1", "a/2"):
        write(tmp_path, f"images/{key}.jpg")
        write(tmp_path, f"masks/{key}_mask.png")
    return tmp_path


TEMPLATES = ["images/{}.jpg", "masks/{}_mask.png"]


def pairs(keys):
    """What is read of some keys."""
    return [[template.format(it).encode() for it in keys] for template in TEMPLATES]


def of(root, count, **given):
    """The bytes of the outputs, of a batch of `count` samples."""
    given = {"files": TEMPLATES, "file_root": root} | given
    return contents(build(readers.columns, count, {}, **given))


@pytest.mark.parametrize(("backend", "options"), BACKENDS)
def test_files_of_one_key_are_a_sample_in_the_order_of_the_bytes_of_keys(root, backend, options):
    keys = ["a-b/1", "a/1", "a/2", "b/10", "b/9"]
    assert of(root, 5, backend=backend, backend_options=options) == pairs(keys)
    absolute = [f"{root}/{each}" for each in TEMPLATES]
    assert of(None, 5, files=absolute, backend=backend, backend_options=options) == pairs(keys)


def test_keys_say_which_samples_there_are_in_which_order(root):
    write(root, "images/b/lonely.jpg")
    keys = ["b/9", "a/1", "b/9"]
    assert of(root, 3, keys=keys) == pairs(keys)
    assert of(root, 3, keys=(os.fsencode(it) for it in keys)) == pairs(keys)
    (root / "lists").mkdir()
    (root / "lists/train.txt").write_bytes(b"b/9\r\n\n  a/1 \n\tb/9")
    (root / "bom.txt").write_bytes(b"\xef\xbb\xbfb/9\na/1\nb/9")
    for named in ("bom.txt", "lists/train.txt", root / "lists/train.txt"):
        assert of(root, 3, keys=named) == pairs(keys)


@pytest.mark.parametrize(
    ("files", "names", "keys"),
    [
        (["d/{}.jpg"], ["d/.jpg", "d/1.jpg"], ["1"]),  # a key is not empty
        (["ab{}ba"], ["aba", "abba", "abcba"], ["c"]),  # nor do its sides overlap
        (["d{}.jpg"], ["d/1.jpg", "d2.jpg"], ["/1", "2"]),
        (["d/{}x", "e/{}x"], ["d/a/x", "e/a/x"], ["a/"]),
        (["{}.jpg", "{}_mask.jpg"], ["1.jpg", "1_mask.jpg"], ["1"]),
        (["d//{}.jpg", "./d/{}.jpg", "{}.jpg"], ["d/1.jpg", "1.jpg"], ["1"]),
    ],
)
def test_a_key_is_any_text_between_the_sides_of_a_template(tmp_path, files, names, keys):
    for name in names:
        write(tmp_path, name)
    expected = [[(tmp_path / each.format(key)).read_bytes() for key in keys] for each in files]
    for more in ({"missing": "skip"}, {"keys": keys}):
        given = {"files": files, "file_root": tmp_path, "name": "R", **more}
        pipeline = build(readers.columns, len(keys), {}, **given)
        assert readers.catalog(pipeline, "R").delivered == len(keys)
        assert contents(pipeline) == expected


def test_labels_are_those_of_the_keys(root):
    given = {"keys": ["b/9", "a/1", "lost", "a/2"], "missing": "skip", "labels": [7, -8, 5, 2]}
    given |= {"files": TEMPLATES, "file_root": root, "return_index": True}
    *_, labels, index = build(readers.columns, 3, {}, **given).run()
    assert labels.as_array().tolist() == [[7], [-8], [2]]
    assert index.as_array().tolist() == [[0], [1], [2]]


def test_a_dict_gives_a_dict(root):
    files = dict(zip(("image", "mask"), TEMPLATES, strict=True))
    labelled = {"keys": ["a/1"], "labels": [3], "return_index": True, "name": "R"}
    with Pipeline(1, 1, None):
        made = readers.columns(files, file_root=root)
        assert list(made) == ["image", "mask"]
        made, label, index = readers.columns(files, file_root=root, **labelled)
        assert [*made] == ["image", "mask"]
        assert [it.name for it in (*made.values(), label, index)] == [f"R[{n}]" for n in range(4)]
        assert len(readers.columns([TEMPLATES[0]], file_root=root)) == 1


def test_a_missing_file_is_refused_by_its_path(root):
    os.remove(root / "masks/a/2_mask.png")
    os.remove(root / "images/b/9.jpg")
    path = re.escape(f"{root}/masks/a/2_mask.png")
    with pytest.raises(ValueError, match=rf"'{path}' of key 'a/2' is missing \(2 of 5 keys"):
        of(root, 3)
    with pytest.raises(ValueError, match=rf"'{path}' of key .* is missing \(1 of 2 keys"):
        of(root, 3, keys=["a/1", "a/2"])
    kept = ["a-b/1", "a/1", "b/10"]
    assert of(root, 3, missing="skip") == pairs(kept)
    assert of(root, 3, keys=kept) == pairs(kept)
    assert of(root, 2, keys=["a/2", "b/10", "a/1"], missing="skip") == pairs(["b/10", "a/1"])


def test_links_count_and_what_is_no_file_does_not(root):
    os.rename(root / "images/b", root / "b")
    (root / "images/b").symlink_to("../b")
    os.remove(root / "masks/a/1_mask.png")
    (root / "masks/a/1_mask.png").symlink_to(root / "masks/a/2_mask.png")
    os.mkfifo(root / "images/a/3.jpg")
    os.mkdir(root / "images/a/4.jpg")
    expected = pairs(["a-b/1", "a/1", "a/2", "b/10", "b/9"])
    expected[1][1] = expected[1][2]
    assert of(root, 5) == expected


def test_a_link_to_itself_does_no_harm_and_one_in_a_circle_is_refused(root):
    (root / "images/a/self").symlink_to("self")
    (root / "images/a/self.jpg").symlink_to("self.jpg")
    keys = ["a-b/1", "a/1", "a/2", "b/10", "b/9"]
    assert of(root, 5, missing="skip") == pairs(keys)
    assert of(root, 5, keys=keys) == pairs(keys)
    for number in range(3):
        (root / f"images/a/up{number}").symlink_to("..")
    with pytest.raises(OSError, match=r"Too many levels of symbolic links.*/up"):
        of(root, 5)


def test_directories_are_listed_once(root, monkeypatch):
    listed = Counter[bytes]()
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.update([path]) or scan(path))
    of(root, 5, files=[*TEMPLATES, "masks/{}_mask.png"])
    assert len(listed) == 8
    assert {*listed.values()} == {1}
    listed.clear()
    (root / "1_mask.png").touch()
    (root / "masks/1_mask.png").touch()
    of(root, 1, files=["masks/{}_mask.png", "{}_mask.png"], keys=["1"])
    assert {*listed.values()} == {1}


def test_a_sample_is_replaced_whole_and_its_bad_file_is_named(root):
    os.remove(root / "masks/a/2_mask.png")
    keys = ["a/1", "a/2", "b/9"]
    files = [[it.decode() for it in column] for column in pairs(keys)]
    given = {"files": files, "file_root": root, "on_error": "replace", "name": "R"}
    pipeline = build(readers.columns, 3, {}, **given)
    with pytest.warns(SampleReplaced, match="masks/a/2_mask.png"):
        images, masks = contents(pipeline)
    assert [images[0], images[2]] == [pairs(keys)[0][0], pairs(keys)[0][2]]
    assert masks == pairs([it.decode()[7:-4] for it in images])[1]
    assert [it[:2] for it in readers.replaced(pipeline, "R")] == [(1, f"{root}/masks/a/2_mask.png")]


def test_a_check_names_the_file_that_is_bad(tmp_path):
    Image.new("L", (3, 2)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:-9])
    files = [["a.png", "a.png"], ["a.png", "b.png"]]
    pipeline = build(readers.columns, 2, {}, files=files, file_root=tmp_path, check=True)
    with pytest.raises(RecordError, match=re.escape(f"{tmp_path}/b.png")):
        pipeline.run()


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"files": ["{root}/x/{{}}.jpg"]}, FileNotFoundError, "{root}/x/"),
        ({"files": ["images/{{}}.gif", "masks/{{}}.gif"]}, ValueError, "0 fit '{root}/images/"),
        ({"files": ["images/{{}}.gif"], "missing": "skip"}, ValueError, "no key has a file"),
        ({"keys": ["c/1"], "missing": "skip"}, ValueError, "no key has a file of each.* 5 fit"),
        ({"keys": "train.txt"}, FileNotFoundError, "{root}/train.txt"),
        ({"keys": "empty.txt"}, ValueError, "keys in '{root}/empty.txt' must not be empty"),
        ({"keys": "nul.txt"}, ValueError, "keys in '{root}/nul.txt' must be .* without NUL"),
        ({"keys": "long.txt"}, ValueError, "is missing .1 of 1 keys"),
        ({"keys": "class.txt"}, ValueError, "of key 'a/1  1' in '{root}/class.txt' "),
        ({"keys": ["a/1", ""]}, ValueError, "'{root}/images/.jpg' of key '' is missing"),
        ({"keys": "s3://bucket/keys"}, ValueError, "'s3://bucket/keys' is an object"),
        ({"keys": ["a/1"], "labels": [1, 2]}, ValueError, "one for each sample: 2 for 1"),
    ],
    ids=str,
)
def test_data_that_do_not_fit_are_refused(root, wrong, error, message):
    (root / "empty.txt").write_text(" \n\n")
    (root / "class.txt").write_text("a/1  1\na/2 -1\n")
    (root / "nul.txt").write_bytes(b"a/1\na\0/2" + bytes(9999))
    (root / "long.txt").write_text("x" * 9999)

    def here(value):
        return value.format(root=root) if isinstance(value, str) else value

    given = {k: [*map(here, v)] if isinstance(v, list) else v for k, v in wrong.items()}
    with pytest.raises(error, match=message.format(root=re.escape(str(root)))) as info:
        of(root, 1, **given)
    assert len(str(info.value)) < 600
