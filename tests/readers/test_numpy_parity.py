"""Random arrays, regions and arguments: `readers.numpy` beside `fn.readers.numpy`, the oracle."""

import numpy as np

from tests.kit import versions
from tests.kit.parity import Case, ParityTests, some_order

CONSTANT = "constant" if versions.has("2.0") else "pad"  # the same

TYPES = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]


def some_shapes(random, files):
    ndim = random.choice([0, 1, 1, 2, 2, 3, 3, 4, 5, 8])
    shape = [random.randint(0 if random.random() < 0.1 else 1, 5) for _ in range(ndim)]
    shapes = []
    ragged = random.random() < 0.4
    for _ in range(files):
        if ragged and ndim:
            shape[random.randrange(ndim)] = random.randint(1, 6)
        shapes.append(tuple(shape))
    if random.random() < 0.15 and ndim in (1, 2):  # beyond what is copied into one array
        shapes = [(random.randint(1100, 1200), *shape[1:]) for shape in shapes]
    return shapes


def write(random, path, shape, dtype):
    values = np.random.default_rng(random.randrange(2**32)).bytes(8 * int(np.prod(shape)) + 8)
    count = int(np.prod(shape))
    array = np.frombuffer(values, "u1" if dtype == "?" else dtype, count).reshape(shape)
    array = array % 2 == 1 if dtype == "?" else array
    order = array.copy(order="F") if random.random() < 0.3 else array
    path.parent.mkdir(exist_ok=True)
    with open(path, "wb") as file:
        np.save(file, order)
        file.write(random.choice([b"", b"", b"", b"more"]))


def some_files(random, root):
    """A tree of arrays and the arguments that name them; one type and number of dimensions."""
    files, dtype = random.randint(1, 14), random.choice(TYPES)
    shapes = some_shapes(random, files)
    names = []
    for number, shape in enumerate(shapes):
        folder = random.choice(["", "", "a/", "b c/", ".hid/", "Z/", "!/"])
        names.append(f"{folder}{random.choice('xX.é')}{number}{random.choice(['.npy', '.NPY'])}")
        write(random, root / names[-1], shape, dtype)
    if random.random() < 0.5:
        (root / "a" / "deeper").mkdir(parents=True, exist_ok=True)
        np.save(root / "a" / "deeper" / "x.npy", np.zeros(1))
        (root / "note.txt").write_text("no array")
    kind = random.choice(["root", "root", "list", "files"])
    if kind == "root":
        filters = ["*.npy", "*.[nN][pP][yY]", "x*y", "[!x]*.npy", "*é*.npy"]
        chosen = {"file_filter": it} if (it := random.choice([None, *filters])) else {}
        return {"file_root": str(root), **chosen}, shapes
    random.shuffle(names)
    names += names[:2]
    if kind == "files":
        return {"files": names, "file_root": str(root)}, shapes
    ends = random.choice(["\n", "\n\n"])
    (root / "list").write_text(ends.join(names) + random.choice(["", "\n"]))
    return {"file_list": str(root / "list")}, shapes


def some_region(random, ndim, extent):
    """Arguments of a region; most are within arrays of `extent` or more in each axis."""
    axes = list(range(ndim))
    random.shuffle(axes)
    axes = axes[: random.randint(1, ndim)]
    count = len(axes) if random.random() < 0.8 else 1
    policy = random.choice(["error", "error", "pad", "trim_to_shape", CONSTANT])
    low, high = (0, extent) if policy == "error" and random.random() < 0.9 else (-3, extent + 4)
    pairs = [sorted(random.randint(low, high) for _ in range(2)) for _ in range(count)]
    relative = [sorted(random.uniform(low, high) / extent for _ in range(2)) for _ in range(count)]
    starts = {
        "roi_start": [start for start, _ in pairs],
        "rel_roi_start": [start for start, _ in relative],
    }
    ends = {
        "roi_end": [end for _, end in pairs],
        "rel_roi_end": [end for _, end in relative],
        "roi_shape": [end - start for start, end in pairs],
        "rel_roi_shape": [end - start for start, end in relative],
    }
    region = {}
    for some in (starts, ends):
        if random.random() < 0.8:
            name = random.choice(list(some))
            value = some[name]
            region[name] = random.choice([value, tuple(value), np.array(value)])
            if len(value) == 1 and random.random() < 0.5:
                region[name] = value[0]
    if sorted(axes) != list(range(ndim)) or random.random() < 0.5:
        region["roi_axes"] = [random.choice([axis, axis - ndim]) for axis in axes]
    region["out_of_bounds_policy"] = policy
    if random.random() < 0.6:
        region["fill_value"] = random.choice([0, 1.5, -2.5, 300, -1e9, 0.49, 7])
    return region


class TestNumpy(ParityTests):
    reader = "numpy"
    other_defaults = ParityTests.other_defaults | {"roi_axes"}
    cases = 15, 300

    def some_case(self, random, directory):
        arguments, shapes = some_files(random, directory)
        ndim, extent = len(shapes[0]), min((min(shape, default=1) for shape in shapes), default=1)
        if 1 <= ndim <= 6 and extent and random.random() < 0.6:
            arguments |= some_region(random, ndim, extent)
        if random.random() < 0.2:
            arguments["cache_header_information"] = True
        arguments |= some_order(random, len(shapes), by_container=False)
        return Case(arguments, ours=random.choice([{}, {"backend": "memory"}]))
