"""Readers beside those of files and containers, each with DALI's own. A new one is an entry."""

import importlib
import json
import os
import sys
import wave
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from nvidia.dali import fn

from dali_storage import readers

from .legs import CACHED, UNCACHED, Backend, Family, Leg, direct_io
from .measure import Results, running
from .pipelines import Build, Stream, outputs, pipeline_of, use_image
from .workload import BadInputError, Data, Workload, epoch_of, order_of, paths, summarize_error

_NO_MMAP: dict[str, Mapping[str, Any]] = {"": {}, "-nommap": {"dont_use_mmap": True}}


@dataclass(frozen=True, slots=True)
class Entry:
    """A reader to be compared.

    Attributes:
        name: of its legs.
        make: of the workload's files; may write to a directory, which exists and may have the data.
        theirs, ours: called with `Data.arguments`, name, order and, ours, backend; return nodes.
        images: how many of the first outputs are encoded images. Of others the shape is taken.
        modes: further arguments of DALI's legs, by the ends of their names.
    """

    name: str
    make: Callable[[Workload, str], Data]
    theirs: Callable[..., Any]
    ours: Callable[..., Any]
    images: int = 1
    modes: Mapping[str, Mapping[str, Any]] = field(default_factory=_NO_MMAP.copy)

    def legs(self) -> Iterator[Leg]:
        """DALI's in each mode, and ours through the page cache and around it."""
        names = tuple(f"dali-{self.name}{end}" for end in self.modes)
        build = partial(_build, self)
        *_, last = self.modes.values()
        truth = build(self.theirs, last)
        family = Family(names, f"fn.readers, {names[-1]}", truth)
        adapt = partial(_adapted, self)
        for name, options in zip(names, self.modes.values(), strict=True):
            yield Leg(name, family, build(self.theirs, options), adapt=adapt, cached=True)
        for end, backend, needs in ("", CACHED, ()), ("-direct", UNCACHED, (direct_io,)):
            ours = build(self.ours, {}, backend)
            yield Leg(self.name + end, family, ours, "", backend, needs, adapt)


def _build(
    entry: Entry,
    read: Callable[..., Any],
    options: Mapping[str, Any],
    backend: Backend | None = None,
) -> Build:
    """Pipelines whose samples are consumed, or copied if exact."""

    @contextmanager
    def build(workload: Workload, exact: bool) -> Iterator[Stream]:
        settings = workload.settings
        given = {**workload.made[entry.name].arguments, **options, "name": "Reader"}
        given |= {} if backend is None else backend.arguments(workload)
        if settings.seed is not None:
            given |= {"random_shuffle": True, "seed": settings.seed}
        pipe = pipeline_of(settings)
        with pipe:
            found = read(**given)
            nodes = list(found) if isinstance(found, (list, tuple)) else [found]
            if exact:
                pipe.set_outputs(*map(fn.copy, nodes))
            else:
                images = [use_image(node, settings) for node in nodes[: entry.images]]
                pipe.set_outputs(*images, *(node.shape() for node in nodes[entry.images :]))
        pipe.build()
        yield Stream(outputs(pipe), pipe)

    return build


def _adapted(entry: Entry, workload: Workload) -> Workload:
    sizes = workload.made[entry.name].sizes
    return replace(workload, sizes=sizes, order=order_of(len(sizes), workload.settings))


def make_data(workload: Workload, directory: str, names: Sequence[str] | None) -> Workload:
    """The workload with the data of the legs `names`, or of all, in `directory/readers`."""
    made = {}
    for entry in ENTRIES:
        if names is None or not {*names}.isdisjoint(leg.name for leg in entry.legs()):
            folder = os.path.abspath(os.path.join(directory, "readers", entry.name))
            try:
                os.makedirs(folder, exist_ok=True)
                made[entry.name] = entry.make(workload, folder)
            except (OSError, ValueError) as error:
                what = f"cannot make the data of {entry.name} in {folder!r}"
                raise BadInputError(f"{what}: {summarize_error(error)}") from error
    return replace(workload, made=made)


def verify(legs: Sequence[Leg], workload: Workload, results: Results) -> None:
    """Fail every leg whose outputs differ in the first epoch from those of DALI's last mode."""
    for leg in running(legs, results):
        epoch = leg.adapt(epoch_of(workload))
        try:
            with leg.build(epoch, True) as ours, leg.family.truth(epoch, True) as theirs:
                batches = zip(ours.batches, theirs.batches, strict=False)
                pairs = enumerate(islice(batches, len(epoch.order)))
                wrong = [number for number, pair in pairs if not _equal(*pair)]
            results[leg.name].failed = f"batch {wrong[0]} differs" if wrong else None
        except Exception as error:  # a reader may raise anything
            results[leg.name].failed = summarize_error(error)
        what = results[leg.name].failed or f"the same as {leg.family.expected}"
        print(f"verifying {leg.name}: {what}", file=sys.stderr)


def _equal(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Whether two batches have the same types, shapes and bytes."""
    pair = ours, theirs
    mine, its = ([np.asarray(it.at(n)) for it in each for n in range(len(it))] for each in pair)
    kinds = [[(it.dtype, it.shape) for it in each] for each in (mine, its)]
    return kinds[0] == kinds[1] and all(map(np.array_equal, mine, its))


# --- The readers ---------------------------------------------------------------------------------


def _pairs(workload: Workload, folder: str) -> Data:
    """Two files of the workload a sample."""
    names, count = [*map(os.fsdecode, paths(workload.catalog))], len(workload.catalog) // 2
    sizes = workload.sizes[:count] + workload.sizes[count : 2 * count]
    return Data({"files": [names[:count], names[count : 2 * count]]}, sizes)


def _by_two(files: Sequence[Sequence[str]], name: str, **given: Any) -> list[Any]:
    each = enumerate(files)
    return [fn.readers.file(files=it, name=f"{name}{n or ''}", **given)[0] for n, it in each]


def _frames(workload: Workload, folder: str) -> Data:
    """The workload's images in one size, in streams of 32; 4 a sample."""
    from PIL import Image  # here: nothing else needs Pillow

    sizes = []
    for number, path in enumerate(paths(workload.catalog)):
        frame = os.path.join(folder, f"{number // 32:04}", f"{number:06}.jpg")
        os.makedirs(os.path.dirname(frame), exist_ok=True)
        if not os.path.exists(frame):
            with Image.open(os.fsdecode(path)) as image:
                image.convert("RGB").resize((320, 240)).save(f"{frame}.part", "JPEG", quality=90)
            os.rename(f"{frame}.part", frame)
        sizes.append(os.stat(frame).st_size)
    whole = [sizes[at : at + 4] for at in range(0, len(sizes), 4) if len(sizes) - at >= 4]
    arguments = {"file_root": folder, "sequence_length": 4, "step": 4}
    return Data(arguments, np.array([*map(sum, whole)], np.int64))


def _boxes(workload: Workload, folder: str) -> Data:
    """The workload's images with 7 boxes each, in COCO's annotations."""
    names = [os.path.abspath(os.fsdecode(path)) for path in paths(workload.catalog)]
    at = os.path.join(folder, "boxes.json")
    images = [{"id": number, "file_name": name} for number, name in enumerate(names)]
    boxes = [
        {"image_id": number, "category_id": 1 + each, "bbox": [each, 2, 30.5, 20.25]}
        for number in range(len(names))
        for each in range(7)
    ]
    content = {"images": images, "annotations": boxes, "categories": [{"id": n} for n in range(9)]}
    with open(at, "w", encoding="utf-8") as file:
        json.dump(content, file)
    return Data({"file_root": "/", "annotations_file": at}, workload.sizes)


def _database(workload: Workload, folder: str) -> Data:
    """The workload's images and their labels as records of Caffe, in an LMDB."""
    try:
        lmdb = importlib.import_module("lmdb")
    except ModuleNotFoundError:
        raise ValueError("it needs a package: pip install lmdb") from None
    names = [*map(os.fsdecode, paths(workload.catalog))]
    with lmdb.open(folder, map_size=4 * int(workload.sizes.sum()) + (1 << 28)) as base:
        if base.stat()["entries"] != len(names):
            with base.begin(write=True) as transaction:
                for number, name in enumerate(names):
                    with open(name, "rb") as file:
                        record = _datum(file.read(), number % 128)
                    transaction.put(b"%08d" % number, record)
    return Data({"path": folder}, workload.sizes)


def _datum(image: bytes, label: int) -> bytes:
    """A Datum of caffe.proto: data (field 4), then label (field 5), below 128."""
    size, length = len(image), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return b"\x22" + length + bytes([size]) + image + bytes([0x28, label])


def _segments(workload: Workload, folder: str) -> Data:
    """Segments of 5 s out of recordings of 10 minutes, of random 16-bit samples at 16 kHz."""
    rate, seconds, nbytes, lines = 16000, 600, 0, []
    for number in range(max(int(workload.sizes.sum()) // (2 * rate * seconds), 1)):
        path = os.path.join(folder, f"{number:04}.wav")
        if not os.path.exists(path):
            with wave.open(f"{path}.part", "wb") as file:
                file.setparams((1, 2, rate, 0, "NONE", ""))
                file.writeframes(np.random.default_rng(number).bytes(2 * rate * seconds))
            os.rename(f"{path}.part", path)
        for start in range(0, seconds, 5):
            lines.append({"audio_filepath": path, "offset": start, "duration": 5, "text": "x"})
            nbytes = 2 * rate * 5
    at = os.path.join(folder, "manifest.json")
    with open(at, "w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)
    return Data({"manifest_filepaths": at}, np.full(len(lines), nbytes, np.int64))


ENTRIES = (
    Entry("columns", _pairs, _by_two, readers.columns, images=2),
    Entry("sequence", _frames, fn.readers.sequence, readers.sequence, images=0),
    Entry("coco", _boxes, fn.readers.coco, readers.coco),
    Entry("caffe", _database, fn.readers.caffe, readers.caffe),
    Entry("nemo-asr", _segments, fn.readers.nemo_asr, readers.nemo_asr, images=0),
)
READER_LEGS = tuple(leg for entry in ENTRIES for leg in entry.legs())
