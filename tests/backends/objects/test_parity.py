"""Samples of object stores beside DALI's own reader of s3://, which is the oracle.

DALI makes its client of S3 once in a process: it knows one server. PARITY=1000 compares as many.
"""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from nvidia.dali import fn

from dali_storage import readers
from dali_storage.cli import prove
from dali_storage.dali.comparing import VARIANTS
from dali_storage.dynamic.readers import File
from tests.kit import parity
from tests.kit.tiers import by_tier

LETTERS = [*"aAbz019_ !\"$%&'()*+,-.:;<=>@[]^`{|}~é€\U0001f600", "a-", "a", "a."]
ENDINGS = ["", ".jpg", ".jpg", ".jpg", ".JPG", ".jpeg", ".txt", ".jpgx", ".WAV"]


def some_name(random):
    """No part of a key that a client takes for another one; see `ODD`."""
    name = "".join(random.choices(LETTERS, k=random.randint(1, 3)))
    return name if name.strip(".") else f"{name}a"


def some_keys(random, prefix):
    """Keys around `prefix`, which ends with a slash: at all depths, and beside it."""
    classes = [some_name(random) for _ in range(random.randint(1, 5))]
    classes += [f"{name}{random.choice(LETTERS)}" for name in classes[:2]]
    keys = set()
    for _ in range(random.randint(1, 30)):
        file = some_name(random) + random.choice(ENDINGS)
        folders = random.choices(classes, k=random.choice([0, 1, 1, 1, 1, 1, 1, 2, 3]))
        keys.add(prefix + "/".join([*folders, file]))
    keys.add(f"{prefix[:-1]}{random.choice('-.0')}/{classes[0]}/{some_name(random)}.jpg")
    return keys


def some_filters(random):
    filters = {}
    if random.random() < 0.5:
        filters["file_filters"] = random.choice(
            ["*", ["*.jpg"], ["*.JP*", "a*"], ["[!a]*", "*.txt"], "?.jpg", "*[-.]*"]
        )
    if random.random() < 0.3:
        filters["dir_filters"] = random.choice(["*", ["a*"], ["*-*", "*[0-9]"], "?", "[!a]*"])
    if random.random() < 0.3:
        filters["case_sensitive_filter"] = random.random() < 0.5
    return filters


def some_markers(random, keys, prefix):
    """Some of the directories of the keys as objects, as consoles make them; and empty ones."""
    folders = {
        key[: at + 1] for key in keys for at in range(len(prefix) - 1, len(key)) if key[at] == "/"
    }
    folders.add(f"{prefix}{some_name(random)}/")
    return set(random.sample(sorted(folders), random.randint(0, len(folders))))


def fill(random, put, bucket):
    """Objects in a bucket. Returns a root, and filters for it."""
    prefix = "/".join(some_name(random) for _ in range(random.randint(1, 3))) + "/"
    keys, filters = some_keys(random, prefix), some_filters(random)
    for key in sorted(keys, key=lambda _: random.random()):
        put(f"{bucket}/{key}", key.encode())  # equal bytes prove equal names
    # DALI takes a marker for a sample where a filter matches "" or ".".
    if filters.get("file_filters", ["*.jpg"])[0] in ("*.jpg", "*.JP*"):
        for marker in some_markers(random, keys, prefix):
            put(f"{bucket}/{marker}", b"")
    return f"s3://{bucket}/{prefix[: random.choice([-1, len(prefix)])]}", filters


def compare(put, seed):
    """Compare one configuration; returns what was compared."""
    random = Random(seed)
    root, filters = fill(random, put, f"bucket-{seed}")
    order = parity.some_order(random, 2, by_container=False)
    # In one of two shards, DALI may fill a whole batch with memory that was never written.
    order["pad_last_batch"] &= order["num_shards"] == 1
    arguments = {"file_root": root, **filters, **order}
    return parity.compare(random, fn.readers.file, readers.file, arguments)


def test_random_objects_are_delivered_as_dali_does(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # DALI looks for the names of objects in the current directory
    found = []
    for seed in parity.seeds(by_tier(6, 20)):
        server.set(page=Random(seed).choice([1, 2, 7, 1000]))
        try:
            found.append(compare(server.put, seed))
        except BaseException as error:
            error.add_note(f"PARITY=1 PARITY_FROM={seed} repeats it")
            raise
    if len(found) >= 6:
        assert found.count("refused") <= len(found) / 2


NAMES = {
    "URLs": {"files": ["s3://data/k.jpg", "s3://other/o.jpg"], "labels": [7, 5]},
    "below": {"file_root": "s3://data/train", "files": ["a/x.jpg", "empty", "%41"]},
    "below a slash": {"file_root": "s3://data/train/", "files": ["a/x.jpg"]},
    "below the bucket": {"file_root": "s3://data", "files": ["k.jpg", "/k.jpg"]},
    "absolute": {"file_root": "s3://data/train", "files": ["/k.jpg", "a/x.jpg"]},
    "a list": {"file_root": "s3://data/train", "file_list": "below.txt"},
    "a list of URLs": {"file_list": "urls.txt"},
}


@pytest.mark.parametrize("given", NAMES.values(), ids=[*NAMES])
def test_names_of_objects_are_read_as_dali_does(server, tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    for key in ("data/k.jpg", "other/o.jpg", "data/train/a/x.jpg", "data/train/%41"):
        server.put(key, key.encode())
    server.put("data/train/empty", b"")
    Path("below.txt").write_text("a/x.jpg 3\n/k.jpg 4\n")
    Path("urls.txt").write_text("s3://other/o.jpg 3\ns3://data/k.jpg 9\n")
    assert parity.compare(Random(0), fn.readers.file, readers.file, given) != "refused"
    ours = parity.build(readers.file, 1, {}, name="R", **given)
    assert readers.catalog(ours, "R").sizes is None


def test_an_object_that_pads_a_whole_batch_is_delivered(server):
    """DALI delivers memory that was never written, which its client has reserved for the object."""
    for name in "abc":
        server.put(f"padded/train/x/{name}.jpg", name.encode())
    order = {"file_root": "s3://padded/train", "num_shards": 2, "pad_last_batch": True}

    def delivered(reader):
        found = parity.take(parity.build(reader, 1, {}, **order), 2)
        return [data[0][2] for data, _ in found]

    assert delivered(readers.file) == [b"a", b"a"]
    assert [*map(len, delivered(fn.readers.file))] == [1, 1 << 20]


@pytest.mark.long
def test_prove_finds_no_difference_below_a_url(server, capsys):
    for number in range(13):
        server.put(f"proof/train/{number % 3}/{number}.jpg", bytes([number]) * (number + 1))
    assert prove.main(["s3://proof/train"]) == 0
    printed = capsys.readouterr().out
    *checks, verdict = [line for line in printed.splitlines() if line.endswith("equal")]
    assert len(checks) == 4 + len(VARIANTS)
    assert verdict == "verdict: all that was compared is equal"
    assert "13 of 13 samples, random" in printed


def test_the_dynamic_reader_lists_objects(server):
    for key in ("train/a/x.jpg", "train/a-b/y.jpg"):
        server.put(f"data/{key}", key.encode())
    with File(file_root="s3://data/train") as reader:
        ((data, _),) = reader.next_epoch(batch_size=2)
        found = [bytes(np.asarray(sample.cpu())) for sample in data]
        assert found == [b"train/a-b/y.jpg", b"train/a/x.jpg"]
