"""readers.manifest: the bytes beside soundfile's frames."""

import io
import json
from random import Random

import numpy as np
import pytest
import soundfile

from dali_storage import RecordError, readers
from tests.kit import manifests
from tests.kit.manifests import KEY
from tests.kit.parity import build, seeds, take
from tests.kit.tiers import by_tier


def some_samples(random, directory):
    """Lines, and what is expected of each: the bytes of a file, or an array of frames."""
    recordings = manifests.some_recordings(random, directory, manifests.CUTTABLE)
    other = directory / "picture.bin"
    other.write_bytes(random.randbytes(random.choice([0, 1, 5000])))
    lines, expected = [], []
    for number in range(random.randint(1, 25)):
        line = {"text": random.choice(["", "abc", "\u00e9" * random.randint(1, 9)]), "n": number}
        line |= {"weight": random.choice([0, -1, random.random()])}
        if random.random() < 0.2:
            expected.append(other.read_bytes())
            lines.append({KEY: str(other), **line})
            continue
        path, frames, rate = random.choice(recordings)
        line |= {KEY: path.name, "offset": 0, "duration": -1}
        if random.random() < 0.6:
            line["offset"] = random.choice([frames / rate, random.randrange(frames) / rate, -2])
        if random.random() < 0.6:
            line["duration"] = random.choice([random.randint(0, frames) / rate, 1000])
        first, wish = (int(max(line["offset"], 0) * rate), int(line["duration"] * rate))
        whole, _ = soundfile.read(path, always_2d=True)
        expected.append(whole[first : first + wish] if line["duration"] >= 0 else whole[first:])
        lines.append(line)
    if random.random() < 0.3:  # no segment begins later than its file
        early = [n for n, line in enumerate(lines) if line.get("offset", 0) <= 0] or [0]
        lines, expected = ([of[n] for n in early] for of in (lines, expected))
    return lines, expected


def same(content, expected):
    if isinstance(expected, bytes):
        return content == expected
    found, _ = soundfile.read(io.BytesIO(content), always_2d=True)
    return found.shape == expected.shape and (found == expected).all()


def test_random_manifests_are_what_libsndfile_reads(tmp_path):
    for seed in seeds(by_tier(5, 300)):
        random, directory = Random(seed), tmp_path / str(seed)
        directory.mkdir()
        lines, expected = some_samples(random, directory)
        cut = random.randint(1, len(lines))
        paths = [manifests.write(directory / "0.jsonl", lines[:cut])]
        if lines[cut:]:
            paths.append(manifests.write(directory / "1.jsonl", lines[cut:]))
        arguments = {"manifests": paths, "file_root": str(directory), "return_index": True}
        arguments |= {"columns": {"text": str, "n": int, "weight": float}, "random_shuffle": True}
        arguments |= random.choice([{}, {"backend": "memory"}])
        (found,) = take(build(readers.manifest, len(lines), {}, **arguments), 1)
        for data, text, n, weight, (*_, index) in zip(*found, strict=True):
            line = lines[sample := int.from_bytes(index, "little")]
            assert same(data[2], expected[sample]), (seed, line)
            assert text == _text(line["text"])
            assert n == ("int64", (1,), np.int64(line["n"]).tobytes())
            assert weight == ("float64", (1,), np.float64(line["weight"]).tobytes())


def _text(text):
    data = text.encode()
    return "uint8", (len(data),), data


@pytest.fixture
def sound(tmp_path):
    return manifests.recording(tmp_path / "a.wav", 2000, 8000, ("WAV", "PCM_16")).path


def pipeline_of(directory, lines, **arguments):
    manifest = manifests.write(directory / "m.jsonl", lines)
    arguments = {"file_root": str(directory), "name": "R", **arguments}
    return build(readers.manifest, 1, {}, manifests=manifest, **arguments)


def test_the_rate_is_an_output_of_wav(tmp_path, sound):
    lines = [{KEY: "a.wav"}, {KEY: "a.wav", "duration": 0.1}]
    pipeline = pipeline_of(tmp_path, lines, return_rate=True)
    (data, rate), (_, other) = take(pipeline, 2)
    assert data[0][2] == sound.read_bytes()
    assert rate == other == [("float32", (), np.float32(8000).tobytes())]
    path = manifests.recording(tmp_path / "b", 100, 8000, ("FLAC", "PCM_16")).path
    with pytest.raises(
        RecordError, match=r"/b': .*m\.jsonl', line 1: segments .* need a WAV with PCM"
    ):
        take(pipeline_of(tmp_path, [{KEY: path.name}], return_rate=True), 1)


def test_keys_of_segments_are_of_no_meaning_if_these_are_not_wanted(tmp_path, sound):
    line = {"image": "a.wav", "offset": "none", "duration": [5]}
    pipeline = pipeline_of(tmp_path, [line], path="image", segments=False)
    assert take(pipeline, 1)[0][0][0][2] == sound.read_bytes()


@pytest.mark.parametrize("kind", [("FLAC", "PCM_16"), ("WAV", "IMA_ADPCM")])
@pytest.mark.parametrize("span", [{"offset": 0.1}, {"duration": 0.1}])
def test_segments_that_are_no_ranges_of_bytes_are_refused(kind, span, tmp_path):
    manifests.recording(tmp_path / "b", 2000, 8000, kind)
    with pytest.raises(RecordError, match=r"/b': .*m.jsonl', line 1: .*PCM.*segments=False"):
        take(pipeline_of(tmp_path, [{KEY: "b", **span}]), 1)


BAD = {
    "no object": ("[1]", "it is not one JSON object"),
    "text": ("nonsense", "Expecting value .column 1.; write one object"),
    "byte order mark": ("\ufeff{}", "it has a byte order mark; save the file"),
    "two objects": ('{"p": "a.wav", "t": "", "n": 1, "x": 1}{}', "it is not one JSON object"),
    "NUL": ('{"p": "a.wav", "t": "", "n": 1, "x": 1}\0', "it is not one JSON object"),
    "cut short": ('{"p": "a.wav"', "not a JSON object: Expecting"),
    "no path": ('{"t": "", "n": 1, "x": 1}', "'p' must be text, but is missing in the line"),
    "empty path": ('{"p": ""}', "'p' must not be empty"),
    "no text": ('{"p": "a.wav", "n": 1, "x": 1}', "'t' must be text, but is missing in the line"),
    "no number": ('{"p": "a.wav", "t": "", "x": 1}', "'n' must be an integer of 64 bits, but is"),
    "a fraction": ('{"p": "a.wav", "t": "", "n": 1.0, "x": 1}', "'n' must be an int.* not 1.0"),
    "too large": ('{"p": "a", "t": "", "n": 9223372036854775808}', "'n' must be an integer"),
    "a flag": ('{"p": "a.wav", "t": "", "n": true, "x": 1}', "'n' must be an integer .* not true"),
    "text for a number": ('{"p": "a.wav", "t": "", "n": 1, "x": "1"}', "'x' must be a number, not"),
    "not finite": ('{"p": "a.wav", "t": "", "n": 1, "x": 1e999}', "'x' must be a number, not Inf"),
    "offset": ('{"p": "a.wav", "t": "", "n": 1, "x": 1, "offset": "0"}', "'offset' must be a n"),
    "behind the end": (
        '{"p": "a.wav", "t": "", "n": 1, "x": 1, "offset": 0.26}',
        "a.wav': the segment begins at frame 2,080, but the file has 2,000 frames at 8,000 Hz",
    ),
}


@pytest.mark.parametrize(("line", "says"), BAD.values(), ids=[*BAD])
def test_a_bad_line_is_refused_by_number(line, says, tmp_path, sound):
    good = {"p": "a.wav", "t": "", "n": 1, "x": 1, "offset": 0.1}
    columns = {"t": str, "n": int, "x": float}
    with pytest.raises(ValueError, match=rf"m\.jsonl', line 3: .*{says}"):
        pipeline_of(tmp_path, [good, "", line], path="p", columns=columns)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("s3://bucket/a.wav", "paths in manifests: 1 of 2 names are URLs"),
        ("ftp://x/a.wav", "paths in manifests must be a local path or a URL"),
        ("a\0b", "paths in manifests must be names of files, not "),
    ],
)
def test_a_wrong_path_in_a_manifest_is_refused(path, says, tmp_path, sound):
    with pytest.raises(ValueError, match=says):
        pipeline_of(tmp_path, [{KEY: str(sound)}, {KEY: path}], file_root=None)


def test_a_state_of_other_segments_or_texts_is_refused(tmp_path, sound):
    lines = [{KEY: "a.wav", "duration": 0.1, "text": text} for text in ("one", "two")]
    order = {"pad_last_batch": True, "columns": {"text": str}}
    state = readers.state(pipeline_of(tmp_path, lines, **order), "R")
    take(pipeline_of(tmp_path, lines, resume=json.loads(json.dumps(state)), **order), 1)
    for change in ({"duration": 0.2}, {"text": "six"}):
        with pytest.raises(ValueError, match="resume"):
            take(pipeline_of(tmp_path, [lines[0] | change, lines[1]], resume=state, **order), 1)
