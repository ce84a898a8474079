"""Lines of manifests and headers of sound. The oracles are soundfile, and DALI's nemo_asr."""

import io
import json
import struct
from decimal import Context
from random import Random

import numpy as np
import pytest
import soundfile
from nvidia.dali import fn

from dali_storage.formats.manifest import lines
from dali_storage.formats.manifest.sound import PAGE, sound_of
from tests.kit import manifests
from tests.kit.manifests import KEY
from tests.kit.parity import build, take
from tests.kit.tiers import by_tier


def header_of(path):
    content = path.read_bytes()
    asked = []

    def more(at):
        asked.append(at)
        return content[at : at + PAGE]

    return sound_of(content[:PAGE], len(content), more), asked


@pytest.mark.parametrize("kind", manifests.CUTTABLE + manifests.CODED, ids="-".join)
def test_a_header_says_what_libsndfile_finds_or_the_sound_has_to_be_decoded(kind, tmp_path):
    path, frames, rate = manifests.recording(tmp_path / "sound", 1000, 48000, kind, 2)
    found, _ = header_of(path)
    expected = None if kind in manifests.CODED else (frames, rate)
    assert (found and (found.frames, found.rate)) == expected


def test_chunks_before_the_data_are_skipped_in_pages(tmp_path):
    path, frames, _ = manifests.recording(tmp_path / "a.wav", 500, 8000, ("WAV", "PCM_16"))
    plain = path.read_bytes()
    at = plain.index(b"data")
    for size in (4, 5, PAGE - 100, 9 * PAGE + 1):  # odd ones are padded
        chunk = struct.pack("<4sI", b"LIST", size) + bytes(size + size % 2)
        path.write_bytes(plain[:at] + chunk + plain[at:])
        found, asked = header_of(path)
        assert (found.frames, found.start) == (frames, at + 8 + len(chunk))
        assert len(asked) == (size > 1000)


@pytest.mark.parametrize("rest", [bytes(8), b"none\0\0\0\0"])
def test_a_file_of_empty_chunks_is_given_up_soon(rest, tmp_path):
    """As one of zeros behind its header, of which a crash has left no more."""
    path, *_ = manifests.recording(tmp_path / "a.wav", 500, 8000, ("WAV", "PCM_16"))
    path.write_bytes(path.read_bytes()[:36] + rest * (8 * PAGE))
    found, asked = header_of(path)
    assert found is None
    assert len(asked) < 4  # of 64 pages


@pytest.mark.parametrize("whole", [None, 0, 8, 0xFFFFFFFF])
@pytest.mark.parametrize("nbytes", [0, 3, 100, 5000, 0xFFFFFFFF])
@pytest.mark.parametrize("form", ["WAV", "RF64"])
def test_a_length_that_is_not_true(form, nbytes, whole, tmp_path):
    path, *_ = manifests.recording(tmp_path / "a.wav", 500, 8000, (form, "PCM_16"))
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, content.index(b"data") + 4, nbytes)
    if whole is not None:
        struct.pack_into("<I", content, 4, whole)
    path.write_bytes(content)
    assert header_of(path)[0].frames == soundfile.info(path).frames


def test_of_a_header_that_is_cut_or_damaged_libsndfile_makes_the_same(tmp_path):
    random, compared = Random(5), 0
    for kind in manifests.CUTTABLE:
        content = manifests.recording(tmp_path / "a", 50, 8000, kind)[0].read_bytes()
        cuts = [content[:size] for size in (0, 3, 11, 12, 20, 27, 40, len(content) - 7)]
        for _ in range(by_tier(15, 40)):
            damaged = bytearray(content)
            damaged[random.randrange(20, 60)] = random.randrange(256)
            cuts.append(bytes(damaged))
        for each in cuts:
            (tmp_path / "b").write_bytes(each)
            found, _ = header_of(tmp_path / "b")
            if found is None:
                continue  # it is decoded as it is
            nbytes = found.frames * found.align
            part = each[found.start :][:nbytes]
            assert len(part) == nbytes
            try:
                expected = soundfile.read(io.BytesIO(each), always_2d=True)
            except soundfile.SoundFileError:
                continue
            sound, rate = soundfile.read(io.BytesIO(found.header(nbytes) + part), always_2d=True)
            assert rate == expected[1], (kind, each)
            np.testing.assert_array_equal(sound, expected[0])
            compared += 1
    assert compared > 50


def test_numbers_are_rounded_as_dali_rounds_them(tmp_path):
    random, rate = Random(1), 44100
    path, frames, _ = manifests.recording(tmp_path / "a.wav", 3000, rate, ("WAV", "PCM_U8"))
    texts = [str(Context(random.randint(15, 23)).divide(k, rate)) for k in range(1, frames, 7)]
    texts += [f"{float(text):.17e}" for text in texts[:100]]
    texts += ["0.000000000000000000000000000001", "2.5E-2", "0.05e0", "1E-320", "-0.5", "1", "1e1"]
    rows = [f'{{"{KEY}": "{path}", "duration": {text}}}' for text in texts]
    manifest = manifests.write(tmp_path / "m.json", rows)
    only_audio = {"read_text": False, "read_sample_rate": False}
    arguments = {"manifest_filepaths": manifest, **only_audio}
    (audio,) = take(build(fn.readers.nemo_asr, len(texts), {}, **arguments), 1)[0]
    found = lines.read([manifest.encode()], KEY, {}, dali=(0.0, 0.0)).rows["duration"]
    ours = [frames if it < 0 else min(int(it * rate), frames) for it in found.tolist()]
    assert ours == [shape[0] for _, shape, _ in audio]
    exact = [min(int(float(text) * rate), frames) for text in texts]
    assert sum(a != b for a, b in zip(ours, exact, strict=True)) > 10


def test_a_manifest_of_many_lines_takes_little_memory_for_each(tmp_path):
    rows = [{KEY: f"{n % 7}.wav", "text": "x" * (n % 5), "n": n} for n in range(2000)]
    manifest = manifests.write(tmp_path / "m.json", rows)
    found = lines.read([manifest.encode()] * 2, KEY, {"text": str, "n": int})
    assert found.names == [b"%d.wav" % n for n in range(7)]
    assert found.rows.nbytes == 4000 * 8 * 8
    texts, numbers = found.values(np.array([3999, 3, 5]))
    assert [bytes(text) for text in texts] == [b"xxxx", b"xxx", b""]
    assert numbers.tolist() == [[1999], [3], [5]]
    assert found.where(2001) == f"{manifest!r}, line 2"
    assert found.rows["number"].tolist() == [*range(2000)] * 2


@pytest.mark.parametrize(
    "line", ["", "  \t", json.dumps({KEY: "a"}) + "  \r", "\t" + json.dumps({KEY: "a"})]
)
def test_blank_lines_and_white_space_are_no_part_of_an_object(line, tmp_path):
    manifest = manifests.write(tmp_path / "m.json", [line, {KEY: "b"}, ""])
    found = lines.read([manifest.encode()], KEY, {})
    assert found.names == ([b"a"] if KEY in line else []) + [b"b"]
    assert found.rows["line"][-1] == 2
