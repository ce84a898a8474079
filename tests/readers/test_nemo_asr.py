"""dali_storage.readers.nemo_asr: what DALI skips, loses or dies of; and its place in a graph."""

import io
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
from nvidia.dali import fn, pipeline_def, types

import dali_storage
from dali_storage import readers
from dali_storage.contract.errors import ManifestLinesSkipped
from tests.kit import manifests, versions
from tests.kit.manifests import KEY
from tests.kit.parity import build, take


@pytest.fixture
def sound(tmp_path):
    """A WAV of 2000 frames at 8 kHz."""
    return str(manifests.recording(tmp_path / "a.wav", 2000, 8000, ("WAV", "PCM_16")).path)


def manifest_of(sound, lines):
    """A manifest beside the sound; `@` is its path, with quotes."""
    texts = [it if isinstance(it, str) else json.dumps(it) for it in lines]
    path = sound.rpartition("/")[0] + "/m.json"
    return manifests.write(Path(path), [text.replace("@", json.dumps(sound)) for text in texts])


def batches(operator, manifest, size=4, **arguments):
    arguments = {"manifest_filepaths": manifest, "read_idxs": True, **arguments}
    return take(build(operator, size, {}, **arguments), 3)


SKIPPED = ["nonsense", "[1, 2]", '"text"', "5", "null", "[", "\ufeff{}", "{}", '{"text": "x"}']
SKIPPED += [f'{{"{KEY}": ""}}', f'{{"{KEY}": "\\u0000x"}}', f'{{"x": {{"{KEY}": @}}}}']


def test_lines_that_dali_skips_are_skipped_and_named(sound):
    good = [f'{{"{KEY}": @, "text": "{number}"}}' for number in range(3)]
    manifest = manifest_of(sound, [good[0], *SKIPPED, "", "  ", good[1], good[2]])
    expected = batches(fn.readers.nemo_asr, manifest)
    words = rf"{len(SKIPPED)} lines are skipped, without a JSON object .*: 2, 3, 4, 5, 6, \.\.\."
    with pytest.warns(ManifestLinesSkipped, match=words):
        assert batches(readers.nemo_asr, manifest) == expected


TAKEN = {
    "escapes": '{"%s": @, "text": "\\u00e9\\ud83d\\ude00\\n\\"\\\\"}',
    "text ends at a NUL": '{"%s": @, "text": "a\\u0000b"}',
    "bytes that are no UTF-8": '{"%s": @, "text": "a\udcffb"}',
    "such bytes, and an escape": '{"%s": @, "text": "\udcff \\u00e9 \udc80"}',
    "such bytes, and half a pair elsewhere": '{"%s": @, "text": "a\udcff", "x": "\\ud800"}',
    "such bytes, and a backslash": '{"%s": @, "text": "C:\\\\users \udce9"}',
    "NaN of another key": '{"%s": @, "text": "t", "snr": NaN, "x": [-Infinity]}',
    "nested values of other keys": '{"x": {"y": [1, {"z": 2}]}, "%s": @, "text": "t", "q": null}',
    "a key twice": '{"%s": @, "text": "1", "duration": 0.2, "text": "2", "duration": 0.1}',
    "what follows an object": '{"%s": @, "text": "1"}{"text": "2"}',
    "a comma behind": '{"%s": @},',
    "digits of another key": '{"%s": @, "text": "t", "x": DIGITS, "y": 0.DIGITS, "z": DIGITS.5}',
    "white space before": ' \t{"%s": @}',
    "NUL and more behind": '{"%s": @}\0{',
    "negative": '{"%s": @, "offset": -1.5, "duration": -2}',
    "very negative": '{"%s": @, "offset": -1e300, "duration": -1e300}',
    "nothing": '{"%s": @, "duration": 0}',
    "from the end": '{"%s": @, "offset": 0.25}',
    "longer than the file": '{"%s": @, "offset": 0.2, "duration": 1e9}',
    "integers": '{"%s": @, "offset": 0, "duration": 1}',
    "wrong text of no use": '{"%s": @, "text": null}',
}


@pytest.mark.parametrize("line", TAKEN.values(), ids=[*TAKEN])
def test_a_line_means_what_it_means_to_dali(line, sound):
    line = (line % KEY).replace("@", json.dumps(sound)).replace("DIGITS", "1" * 5000)
    lines = [line, json.dumps({KEY: sound})]
    path = Path(sound).with_suffix(".json")
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    given = {"read_text": "null" not in line or "q" in line}
    expected = batches(fn.readers.nemo_asr, str(path), **given)
    assert batches(readers.nemo_asr, str(path), **given) == expected


REFUSED = {
    "path: a number": ('{"%s": 5}', "must be text, not 5"),
    "path: null": ('{"%s": null}', "must be text, not null"),
    "path: a list": ('{"%s": [@]}', "must be text, not "),
    "path: without an end": ('{"%s": "a.wav', "not a JSON object: Unterminated string"),
    "path: a tab": ('{"%s": "a\tb"}', "not a JSON object: Invalid control character"),
    "text: null": ('{"%s": @, "text": null}', "'text' must be text, not null"),
    "text: a number": ('{"%s": @, "text": 5}', "'text' must be text, not 5"),
    "text: true": ('{"%s": @, "text": true}', "'text' must be text, not true"),
    "text: a list": ('{"%s": @, "text": ["a"]}', "'text' must be text, not"),
    "text: a tab": ('{"%s": @, "text": "a\tb"}', "Invalid control character"),
    "text: half a pair": ('{"%s": @, "text": "\\ud800b"}', "'text' has half of a surrogate pair"),
    "text: the other half": ('{"%s": @, "text": "\\udc80"}', "'text' has half of a surrogate pair"),
    "duration: text": ('{"%s": @, "duration": "0.5"}', "'duration' must be a number, not"),
    "duration: null": ('{"%s": @, "duration": null}', "'duration' must be a number, not null"),
    "duration: true": ('{"%s": @, "duration": true}', "'duration' must be a number, not true"),
    "duration: NaN": ('{"%s": @, "duration": NaN}', "'duration' must be a number, not NaN"),
    "duration: too large": ('{"%s": @, "duration": 1e400}', "'duration' must be a number, not Inf"),
    "duration: digits": ('{"%s": @, "duration": ' + "9" * 400 + "}", "must be a number, not 9"),
    "duration: more digits": ('{"%s": @, "duration": ' + "9" * 5000 + "}", "a number, not Inf"),
    "offset: text": ('{"%s": @, "offset": "x"}', "'offset' must be a number, not"),
    "offset: behind the end": ('{"%s": @, "offset": 2}', "begins at frame 16,000, but .* 2,000"),
    "offset: one frame behind": ('{"%s": @, "offset": 0.250125}', "begins at frame 2,001, but"),
    "offset: at infinity": ('{"%s": @, "offset": 1e308}', "but the file has 2,000"),
    "offset: far behind": ('{"%s": @, "offset": 1e300, "duration": 1}', "but the file has 2,000"),
    "a comma at the end": ('{"%s": @,}', "not a JSON object: "),
    "without an end": ('{"%s": @', "not a JSON object: Expecting"),
    "quotes": ("{'%s': @}", "not a JSON object: Expecting property name"),
    "several lines": ('{\n"%s": @\n}', "not a JSON object: "),
    "another value": ('{"x": [1,,2], "%s": @}', "not a JSON object: Expecting value"),
    "very deep": ('{"x": ' + "[" * 100_000 + '1, "%s": @}', "are nested too deep; write one"),
}


@pytest.mark.parametrize(("line", "says"), REFUSED.values(), ids=[*REFUSED])
def test_what_dali_dies_of_or_loses_is_refused_by_line(line, says, sound):
    for number, lines in enumerate([[line % KEY], [{KEY: sound}, line % KEY]], 1):
        manifest = manifest_of(sound, lines)
        with pytest.raises(ValueError, match=rf"m\.json', line {number}: .*({says})"):
            batches(readers.nemo_asr, manifest)


@pytest.mark.parametrize("lines", [[], ["", "\n"], [f'{{"{KEY}": @, "duration": 0.1}}']])
def test_no_sample_is_refused(lines, sound):
    manifest = manifest_of(sound, lines)
    with pytest.raises(ValueError, match=r"no line of '.*m\.json' .* and a duration between"):
        readers.nemo_asr(manifest_filepaths=manifest, min_duration=0.2)


def test_a_manifest_without_a_path_is_refused_without_words_about_durations(sound):
    with (
        pytest.warns(ManifestLinesSkipped, match=r"1 line is skipped, without a JSON .*: 1$"),
        pytest.raises(ValueError, match=rf"is a JSON object with '{KEY}'; write one for each"),
    ):
        readers.nemo_asr(manifest_filepaths=manifest_of(sound, ["x"]))


@pytest.mark.parametrize("limit", [0.1, 0.3, 0.7, 0.9, 0.05])
def test_limits_have_the_precision_of_dali(limit, sound):
    manifest = manifest_of(sound, [{KEY: sound, "duration": it} for it in (limit, limit, 0.2)])
    for given in ({"max_duration": max(limit, 0.2)}, {"min_duration": min(limit, 0.2)}):
        expected = batches(fn.readers.nemo_asr, manifest, **given)
        assert batches(readers.nemo_asr, manifest, **given) == expected


def test_a_manifest_may_be_a_pipe(sound):
    lines = [json.dumps({KEY: sound, "text": str(number)}) + "\n" for number in range(99)]
    end, start = os.pipe()
    with os.fdopen(end), os.fdopen(start, "w") as file:
        file.write("".join(lines))
        file.close()
        texts = [it[2][0][2] for it in batches(readers.nemo_asr, f"/dev/fd/{end}", size=1)]
    assert texts == [b"0", b"1", b"2"]


def test_a_file_whose_header_is_needed_is_missing_at_once(sound):
    manifest = manifest_of(sound, [{KEY: sound, "offset": 0.1}, {KEY: "/none.wav"}])
    with pytest.raises(FileNotFoundError, match=r"/none\.wav"):
        readers.nemo_asr(manifest_filepaths=manifest)


@pytest.mark.parametrize("coding", ["GSM610", "NMS_ADPCM_16", "G721_32"])
def test_segments_are_cut_out_of_the_decoded_whole(coding, sound, tmp_path):
    """DALI decodes from where a segment begins, without the data before."""
    path, *_ = manifests.recording(tmp_path / "b", 20_000, 8000, ("WAV", coding))
    whole, _ = soundfile.read(path, dtype="float32")
    manifest = manifest_of(sound, [{KEY: str(path), "offset": 0.5, "duration": 1}])
    for operator, equal in ((readers.nemo_asr, True), (fn.readers.nemo_asr, False)):
        (found, *_), *_ = batches(operator, manifest, 1)
        assert (found[0][2] == whole[4000:12_000].tobytes()) == equal


CODED = [("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("WAV", "PCM_16")]


@pytest.mark.parametrize("kind", CODED, ids=str)
def test_a_segment_behind_the_end_is_refused_where_the_file_is_read(kind, sound, tmp_path):
    path, *_ = manifests.recording(tmp_path / "b", 50_000, 8000, kind, 2)
    manifest = manifest_of(sound, [{KEY: str(path), "offset": 10, "duration": 1}, {KEY: sound}])
    wrong = rf"m\.json', line 1: '{path}': .*frame 80,000, but .* 50,000 frames"
    says = wrong if kind[0] == "WAV" else r"fn\.slice"
    for given in ({}, {"sample_rate": 16000}):
        with pytest.raises((ValueError, RuntimeError), match=says):
            batches(readers.nemo_asr, manifest, **given)
    manifest = manifest_of(sound, [{KEY: str(path), "offset": 6.25, "duration": 1}])
    expected = batches(fn.readers.nemo_asr, manifest)
    assert expected[0][0][0][1] == (0,)
    assert batches(readers.nemo_asr, manifest) == expected


def mp3():
    file = io.BytesIO()
    soundfile.write(file, np.zeros(20_000), 16_000, format="MP3")
    return file.getvalue()


NO_SOUND = {"empty": b"", "cut": b"RIFF", "a tag": b"ID3 and more"}
NO_SOUND |= {"no data": b"RIFF\0\0\0\0WAVEdata", "MP3, which DALI refuses": mp3()}


@pytest.mark.parametrize("content", NO_SOUND.values(), ids=[*NO_SOUND])
def test_a_file_that_is_no_sound_is_refused_by_the_decoder(content, sound, tmp_path):
    (tmp_path / "b").write_bytes(content)
    manifest = manifest_of(sound, [{KEY: str(tmp_path / "b")}])
    for given in ({}, {"sample_rate": 16000}):
        with pytest.raises(RuntimeError, match=r"decoders\.audio"):
            batches(readers.nemo_asr, manifest, **given)
        if versions.has("2.4"):  # older ones may take or die of more
            with pytest.raises(RuntimeError, match=r"readers\.nemo_asr"):
                batches(fn.readers.nemo_asr, manifest, **given)


@pytest.mark.parametrize("form", ["WAV", "FLAC"])
def test_sound_behind_a_tag_is_read(form, sound, tmp_path):
    path, *_ = manifests.recording(tmp_path / "b", 5000, 8000, (form, "PCM_16"), 2)
    path.write_bytes(b"ID3\3\0\0\0\0\0\x14" + bytes(20) + path.read_bytes())
    segments = [{"offset": 0.1, "duration": 0.2}, {"duration": 0.2}, {}]
    lines = [{KEY: str(path), **segment} for segment in segments]
    manifest = manifest_of(sound, lines)
    for given in ({}, {"sample_rate": 16000, "dtype": types.INT16}):
        expected = batches(fn.readers.nemo_asr, manifest, **given)
        assert batches(readers.nemo_asr, manifest, **given) == expected


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("more", [-1000, 0, 1000])
def test_a_file_that_changes_after_its_header_was_read_is_refused(more, in_place, sound):
    manifest = manifest_of(sound, [{KEY: sound, "offset": 0.1}])
    built = build(readers.nemo_asr, 1, {}, manifest_filepaths=manifest)
    other = manifests.recording(Path(sound + "2"), 2000 + more, 8000, ("WAV", "PCM_16")).path
    Path(sound).write_bytes(other.read_bytes()) if in_place else other.replace(sound)
    with pytest.raises(dali_storage.ContainerChangedError, match=re.escape(sound)):
        take(built, 4)


def test_only_the_bytes_of_a_segment_are_read(sound, tmp_path):
    path, *_ = manifests.recording(tmp_path / "long.wav", 10**6, 8000, ("WAV", "PCM_16"))
    manifest = manifest_of(sound, [{KEY: str(path), "offset": n, "duration": 1} for n in (9, 70)])
    pipeline = build(readers.nemo_asr, 2, {}, manifest_filepaths=manifest, name="R")
    ranges = readers.catalog(pipeline, "R").ranges
    assert ranges.sizes.tolist() == [16000] * 2
    assert ranges.starts.tolist() == [44 + 2 * 8000 * n for n in (9, 70)]


def test_values_mean_what_they_mean_to_dali(sound):
    manifest = manifest_of(sound, [{KEY: sound, "duration": 0.1, "text": "a"}, {KEY: sound}])
    for given in (
        dict.fromkeys(["dtype", "downmix", "quality", "read_text", "sample_rate", "min_duration"]),
        {"sample_rate": "16000", "quality": True, "max_duration": "2e-1", "read_text": 0},
    ):
        expected = batches(fn.readers.nemo_asr, manifest, **given)
        assert batches(readers.nemo_asr, manifest, **given) == expected


@pytest.mark.parametrize("dynamic", [True, False])
def test_it_works_where_conditionals_are_enabled_and_before_any_batch(dynamic, sound, tmp_path):
    flac, *_ = manifests.recording(tmp_path / "b.flac", 2000, 16000, ("FLAC", "PCM_16"))
    lines = [{KEY: str(path), "duration": 0.1} for path in (sound, flac)]
    arguments = {"manifest_filepaths": manifest_of(sound, lines), "sample_rate": 16000}

    @pipeline_def(
        batch_size=3, num_threads=1, device_id=None, enable_conditionals=True, exec_dynamic=dynamic
    )
    def pipeline(operator, lazy):
        audio, rate, _ = operator(**arguments, lazy_init=lazy)
        if rate == 8000.0:
            audio = audio * np.float32(2)
        return audio, rate

    expected = take(pipeline(fn.readers.nemo_asr, False), 3)
    for lazy in (False, True):
        assert take(pipeline(readers.nemo_asr, lazy), 3) == expected
