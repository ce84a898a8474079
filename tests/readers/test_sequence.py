"""readers.sequence on random trees beside `fn.readers.sequence`, the oracle, and on bad ones."""

import os
import re
from types import SimpleNamespace

import numpy as np
import pytest
from nvidia.dali import fn, types
from PIL import Image, ImageOps

from dali_storage import readers
from tests.kit.dali import pipeline_of
from tests.kit.parity import Case, ParityTests, build, contents, some_order, take
from tests.kit.versions import has

NAMES = "%d", "%05d", "f%d", ".x%d"
MODES = dict.fromkeys((".jpg", ".JPG", ".jpeg", ".ppm"), ("RGB", "L"))
MODES |= dict.fromkeys((".jp2", ".webp"), ("RGB", "L", "RGBA"))
MODES |= dict.fromkeys((".bmp", ".tif", ".TIFF"), ("RGB", "L", "P", "RGBA"))
MODES[".png"] = "RGB", "L", "LA", "P", "RGBA"
"""Of Pillow, with 8 bits. DALI's decoder reads "LA" in TIFF differently each time."""

ITS_DECODER = pytest.mark.dali("2.2", "its reader of sequences decodes in another way")
pytestmark = pytest.mark.usefixtures("no_deprecations")
WITH_DALIS = pytest.mark.skipif(
    not hasattr(fn.readers, "sequence"), reason="this DALI has dropped its own"
)


def save(path, size=(5, 4), value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 7, 200)).save(path)


def some_tree(random, root):
    """Directories of frames, of one size in each, and what else may lie there."""
    for number in range(random.randint(1, 4)):
        stream = root / (random.choice(["s%d", "a b%d", "Z%d", "a-%d", ".h%d", "é%d"]) % number)
        stream.mkdir()
        height, width = random.randint(1, 20), random.randint(1, 20)
        for frame in range(random.choice([0, 3, 6, 9, 12])):
            pixels = np.frombuffer(random.randbytes(height * width * 3), np.uint8)
            image = Image.fromarray(pixels.reshape(height, width, 3))
            extension = random.choice([*MODES])
            path = stream / (random.choice(NAMES) % frame + extension)
            image.convert(random.choice(MODES[extension])).save(path)
            if random.random() < 0.1:
                (stream / f"link{frame}.png").symlink_to(path.name)
        if random.random() < 0.3:
            (stream / "deeper").mkdir()
            save(stream / "deeper/1.png")
    if random.random() < 0.3:
        save(root / "top.png")
    if random.random() < 0.3:
        (root / "dangling").symlink_to("nowhere")


@WITH_DALIS
class TestSequence(ParityTests):
    reader = "sequence"
    lacks = frozenset({"shuffle_after_epoch", "shuffle_after_epoch_seed"})
    other_defaults = ParityTests.other_defaults | {"image_type"}  # DALI's has a type of its own
    cases = 10, 200

    def some_case(self, random, directory):
        some_tree(random, directory)
        arguments = {"file_root": str(directory), "sequence_length": random.randint(1, 4)}
        arguments |= {"step": random.randint(1, 3), "stride": random.randint(1, 3)}
        if random.random() < 0.4:
            arguments["image_type"] = random.choice([types.GRAY, types.BGR, types.RGB])
        order = some_order(random, 4, by_container=False)
        arguments |= {name: order[name] for name in order.keys() - self.lacks}
        return Case(arguments, ours=random.choice([{}, {"backend": "memory"}]))


@pytest.fixture
def root(tmp_path):
    """Two streams of 5 and 4 frames, of other sizes."""
    for number in range(5):
        save(tmp_path / f"a/{number}.png", value=number)
    for number in range(4):
        save(tmp_path / f"b/{number}.png", (3, 3), value=10 + number)
    return tmp_path


@WITH_DALIS
def test_the_outputs_are_those_of_dali_with_names_layout_and_index(root):
    def outputs(module, **more):
        sequences = module.sequence(file_root=str(root), sequence_length=2, stride=2, **more)
        nodes = sequences if isinstance(sequences, tuple) else (sequences,)
        found = pipeline_of(lambda: nodes, 5).run()
        return [(np.asarray(it.at(3)).tolist(), it.layout(), str(it.dtype)) for it in found]

    (real,) = outputs(fn.readers)
    ours, index = outputs(readers, return_index=True)
    assert ours == real
    assert (real[1], index) == ("FHWC", ([3], "", "DALIDataType.INT64"))


@WITH_DALIS
@pytest.mark.parametrize("length", [1, 3])
def test_it_needs_no_reader_of_dali(root, length, monkeypatch):
    arguments = {"file_root": str(root), "sequence_length": length}
    expected = take(build(fn.readers.sequence, 4, {}, **arguments), 3)
    monkeypatch.delattr(fn.readers, "sequence")
    assert take(build(readers.sequence, 4, {}, **arguments), 3) == expected


def test_a_device_is_that_of_the_decoders(root, monkeypatch):
    seen = []
    decoders = SimpleNamespace(image=lambda it, **options: seen.append(options["device"]) or it)
    monkeypatch.setattr(fn, "decoders", decoders)
    for device in ("mixed", "cpu", None):
        build(readers.sequence, 2, {}, file_root=str(root), sequence_length=2, device=device)
    assert seen == ["mixed", "mixed", "cpu", "cpu", "cpu", "cpu"]


def test_the_name_of_the_root_is_no_pattern(tmp_path):
    save(tmp_path / "data[1]*/s/1.png")
    save(tmp_path / "data1/s/2.png")
    arguments = {"file_root": str(tmp_path / "data[1]*"), "sequence_length": 1}
    pipeline = build(readers.sequence, 1, {}, **arguments, name="R")
    assert readers.catalog(pipeline, "R").names == b"s/1.png"


@WITH_DALIS
@ITS_DECODER
def test_images_may_have_types_that_dali_refuses(root):
    arguments = {"file_root": str(root), "sequence_length": 1, "image_type": types.YCbCr}
    with pytest.raises(RuntimeError, match="not supported"):
        build(fn.readers.sequence, 1, {}, **arguments).run()
    frame = fn.decoders.image(
        fn.readers.file(files=[str(root / "a/0.png")])[0], output_type=types.YCbCr
    )
    expected = contents(pipeline_of(lambda: [frame], 1))
    assert contents(build(readers.sequence, 1, {}, **arguments)) == expected


@WITH_DALIS
@pytest.mark.parametrize("bad", ["empty", "cut short", "of another size"])
def test_a_bad_frame_is_refused_by_the_running_pipeline(root, bad):
    frame, words = root / "a/1.png", r"decoders\.image"
    if bad == "of another size":
        save(frame, (6, 6))
        words = r"fn\.stack"
    else:
        frame.write_bytes(frame.read_bytes()[: 40 if bad == "cut short" else 0])
    arguments = {"file_root": str(root), "sequence_length": 2}
    operators = [(readers.sequence, words)]
    if has("2.2") or bad != "of another size":  # older ones write beyond their memory
        operators.append((fn.readers.sequence, None))
    for operator, said in operators:
        pipeline = build(operator, 3, {}, **arguments)
        with pytest.raises(RuntimeError, match=said):
            pipeline.run()
    good = build(readers.sequence, 1, {}, **arguments, stride=3)  # without the bad frame
    good.run()


def test_a_directory_with_the_name_of_an_image_is_refused_by_its_path(root):
    os.mkdir(path := root / "a/2a.jpg")
    pipeline = build(readers.sequence, 2, {}, file_root=str(root), sequence_length=5)
    with pytest.raises(OSError, match=re.escape(str(path))):
        pipeline.run()


@pytest.mark.long
def test_the_longest_sequence_has_999_frames(root):
    for number in range(5, 999):
        os.link(root / f"a/{number % 5}.png", root / f"a/{number}.png")
    names = sorted(map(str, range(999)))
    pipeline = build(readers.sequence, 1, {}, file_root=str(root), sequence_length=999)
    found = np.asarray(pipeline.run()[0].at(0))
    assert found[:, 0, 0, 0].tolist() == [int(name) % 5 for name in names]


@pytest.mark.parametrize("place", [".", "a"])
def test_a_link_to_itself_is_no_stream_and_does_no_harm(root, place):
    (root / place / "me").symlink_to("me")
    pipeline = build(readers.sequence, 9, {}, file_root=str(root), sequence_length=1, name="R")
    assert len(readers.catalog(pipeline, "R")) == 9


@WITH_DALIS
@ITS_DECODER
def test_frames_of_16_bits_differ_by_one_from_those_of_dali(tmp_path):
    """DALI's reader rounds to 8 bits in another way than its decoder, which ours are from."""
    values = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    (tmp_path / "s").mkdir()
    Image.fromarray(values).save(tmp_path / "s/0.png")
    arguments = {"file_root": str(tmp_path), "sequence_length": 1, "image_type": types.GRAY}
    ours, real = (
        np.asarray(build(module.sequence, 1, {}, **arguments).run()[0].at(0)).ravel().astype(int)
        for module in (readers, fn.readers)
    )
    decoded = fn.decoders.image(
        fn.readers.file(files=[str(tmp_path / "s/0.png")])[0], output_type=types.GRAY
    )
    assert [bytes(ours.astype(np.uint8))] == contents(pipeline_of(lambda: [decoded], 1))[0]
    assert abs(ours - real).max() == 1


@pytest.mark.dali("2.2", "its decoder ignores EXIF on the CPU")
def test_frames_are_rotated_as_exif_says(tmp_path):
    """Only by ours: DALI's reader crashes on such frames unless they are squares."""
    image, exif = Image.linear_gradient("L").resize((36, 24)), Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "s").mkdir()
    image.save(tmp_path / "s/0.jpg", exif=exif, quality=95)
    arguments = {"file_root": str(tmp_path), "sequence_length": 1, "image_type": types.GRAY}
    (found,) = np.asarray(build(readers.sequence, 1, {}, **arguments).run()[0].at(0))
    upright = np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / "s/0.jpg")))
    assert found.shape == (36, 24, 1)
    assert abs(found[..., 0].astype(int) - upright).max() <= 2
