"""Random WebDatasets and arguments: `readers.webdataset` beside `fn.readers.webdataset`."""

import io
import tarfile

import numpy as np
from nvidia.dali import types
from wds2idx import IndexCreator

from tests.kit.parity import Case, ContainerParityTests, some_order

EXTENSIONS = ["jpg", "cls", "json", "JPG", "seg.png", "x;y", "n", ""]
ODD = [".hidden", "dir/.hidden", "nodot", "dir/nodot", "a.", "a..jpg", ".", "..jpg", "dir/.jpg"]
ODD += ["jpg", "dir.jpg/a.jpg"]
OUTPUTS = [
    *("jpg", "cls", "json;cls", "JPG;jpg", "SEG.png", "seg.png", "png", "n", "", ";n", "json;"),
    *("jpg;;cls", "n", "nodot;jpg", ".jpg"),
]
NOT_FILES = [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
DTYPES = [
    *(types.UINT8, types.INT8, types.UINT16, types.INT16, types.UINT32, types.INT32),
    *(types.UINT64, types.INT64, types.FLOAT16, types.FLOAT, types.FLOAT64),
]

"""Of each sample of an index: extension, offset, size and name of its components."""


def some_name(random, sample, flavour):
    base = random.choice(["a", "b", "dir/a", "./c", "/abs", "../a", "up/../a", "d.d/f", "é", "x y"])
    if base == "é" and flavour == tarfile.PAX_FORMAT:  # DALI does not read pax headers
        base = "e"
    if flavour == tarfile.GNU_FORMAT and random.random() < 0.1:
        base = "long/" * 21 + base.lstrip("/.")
    if random.random() < 0.08:
        return random.choice(ODD)
    return f"{base}{sample}.{random.choice(EXTENSIONS)}"


def some_tar(random, path, samples, unit):
    """A tar with regular files and others; most sizes are multiples of `unit`."""
    flavour = random.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    with tarfile.open(path, "w", format=flavour) as tar:
        for sample in range(samples):
            for _ in range(random.choice([1, 2, 2, 3])):
                info = tarfile.TarInfo(some_name(random, sample, flavour))
                info.type = random.choice([tarfile.REGTYPE] * 8 + [tarfile.AREGTYPE, b"7"])
                info.mtime = random.choice([0, 1.5])
                info.size = unit * random.choice([0, 1, 1, 2, 70]) + (random.random() < 0.005)
                tar.addfile(info, io.BytesIO(random.randbytes(info.size)))
            if random.random() < 0.2:
                info = tarfile.TarInfo(f"other{sample}.jpg")
                info.type, info.linkname = random.choice(NOT_FILES), "a0.jpg"
                tar.addfile(info)
    content = path.read_bytes()
    end = len(content.rstrip(b"\0")) // 512 * 512 + 512  # or up to a block of data less
    if content.rstrip(b"\0") and (join := random.random()) < 0.3:
        path.write_bytes(content[:end] + bytes(512 * random.randrange(4)) * (join < 0.2) + content)


def rows_of(tar):
    """The components that an index can have: extensions are words."""
    samples = []
    last = None
    with tarfile.open(tar) as members:
        for member in members:
            base, extension = IndexCreator.split_name(member.name)
            if member.isreg() and base and extension:
                samples += [[]] if base != last else []
                last = base
                row = extension, member.offset_data, member.size, member.name.replace(" ", "_")
                samples[-1].append(row)
    return samples


def some_index(random, tar, path):
    """An index with its lines in any order, some twice, some not at all; False if there is none."""
    samples = rows_of(tar)
    if not samples:
        return False
    change = random.random()
    if change < 0.2:
        samples = random.choices(samples, k=len(samples) + 2)
    elif change < 0.4:
        random.shuffle(samples)
    version = random.choice(["v1.1", "v1.2"])
    blank = random.choice([" ", " ", "\t", "  "])
    lines = [f"{version} {len(samples)}"]
    for sample in samples:
        words = [map(str, row if version == "v1.2" else row[:3]) for row in sample]
        lines.append(blank.join(blank.join(row) for row in words))
    lines += ["what stands behind is ignored"] * random.choice([0, 0, 1])
    end = random.choice(["\n", "\n", "\r\n"])
    path.write_bytes((end.join(lines) + random.choice(["", end])).encode())
    return True


def some_set(random, directory, unit):
    tars = [directory / f"{number}.tar" for number in range(random.choice([1, 2, 3, 5]))]
    for tar in tars:
        some_tar(random, tar, random.choice([0, 1, 3, 8]), unit)
    indexes = [directory / f"{tar.stem}.idx" for tar in tars]
    arguments = {"paths": [str(tar) for tar in tars]}
    with_index = [some_index(random, *pair) for pair in zip(tars, indexes, strict=True)]
    if all(with_index) and random.random() < 0.7:
        arguments["index_paths"] = [str(index) for index in indexes]
    return arguments


def some_outputs(random, unit):
    ext = random.choices(OUTPUTS, k=random.choice([1, 2, 2, 3]))
    if random.random() < 0.8:  # one component of several outputs is always one too few
        ext = list(dict.fromkeys(ext))
    arguments = {"ext": ext}
    if random.random() < 0.5:
        fitting = [t for t in DTYPES if unit % np.dtype(types.to_numpy_type(t)).itemsize == 0]
        arguments["dtypes"] = random.choices(fitting, k=len(ext))
    if random.random() < 0.5:
        arguments["missing_component_behavior"] = random.choice(["", "Empty", "SKIP", "error"])
    if random.random() < 0.3:
        arguments["case_sensitive_extensions"] = False
    return arguments


class TestWebDataset(ContainerParityTests):
    reader = "webdataset"
    new = ContainerParityTests.new | {"split"}
    cases = 40, 300

    def some_case(self, random, directory):
        unit = random.choice([1, 2, 4, 8])
        arguments = some_set(random, directory, unit) | some_outputs(random, unit)
        arguments |= some_order(random, random.choice([1, 3, 3]), by_container=True)
        # Without mmap, DALI dies of a component of several outputs.
        names = [word for ext in arguments["ext"] for word in {*ext.lower().split(";")}]
        arguments["dont_use_mmap"] &= len(names) == len({*names})
        return Case(arguments, ours={"backend": random.choice(["memory", "memory", "python-file"])})
