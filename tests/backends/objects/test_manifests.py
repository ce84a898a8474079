"""Manifests that are objects, or name some; the oracle is DALI's reader of the same local files."""

from pathlib import Path

import pytest
from nvidia.dali import fn

from dali_storage import readers
from dali_storage.contract.errors import ObjectReplacedError
from tests.kit import manifests
from tests.kit.manifests import KEY
from tests.kit.parity import build, take

SPANS = [{}, {"duration": 0.1}, {"offset": 0.05, "duration": 0.1}]


@pytest.fixture
def local(tmp_path):
    """A WAV with a long header, and a FLAC."""
    wav, flac = (
        manifests.recording(tmp_path / f"a.{form}", 4000, 8000, (form, "PCM_16")).path
        for form in ("WAV", "FLAC")
    )
    content = wav.read_bytes()
    at = content.index(b"data")
    wav.write_bytes(
        content[:at] + b"LIST" + (9000).to_bytes(4, "little") + bytes(9000) + content[at:]
    )
    return [wav, flac]


def lines_of(names, spans):
    return [{KEY: str(name), "text": "x", **span} for name in names for span in spans]


@pytest.mark.parametrize("spans", [SPANS, SPANS[:2]], ids=["ranges", "whole objects"])
@pytest.mark.parametrize("manifest_there", [True, False])
def test_sound_in_a_store_is_delivered_as_from_files(
    spans, manifest_there, local, server, tmp_path
):
    urls = [f"s3://data/c/{path.name}" for path in local]
    for path in local:
        server.put(f"data/c/{path.name}", path.read_bytes())
    here = manifests.write(tmp_path / "here.json", lines_of(local, spans))
    there = manifests.write(tmp_path / "there.json", lines_of(urls, spans))
    if manifest_there:
        server.put("data/m.json", Path(there).read_bytes())
        there = "s3://data/m.json"
    expected = take(build(fn.readers.nemo_asr, 4, {}, manifest_filepaths=here), 3)
    server.log(clear=True)
    assert take(build(readers.nemo_asr, 4, {}, manifest_filepaths=there), 3) == expected
    kinds = [request.kind for request in server.log()]
    if spans is SPANS:  # of each object once, and not of each sample
        assert kinds.count("HEAD") == 2


def test_names_may_be_relative_to_a_url(local, server, tmp_path):
    server.put("data/c/a.WAV", local[0].read_bytes())
    manifest = manifests.write(tmp_path / "m.json", [{KEY: "c/a.WAV"}])
    pipeline = build(readers.manifest, 1, {}, manifests=manifest, file_root="s3://data")
    assert take(pipeline, 1)[0][0][0][2] == local[0].read_bytes()


def test_an_object_that_is_replaced_is_refused_by_name(local, server, tmp_path):
    server.put("data/c/a.WAV", local[0].read_bytes())
    lines = lines_of(["s3://data/c/a.WAV"], SPANS[2:])
    manifest = manifests.write(tmp_path / "m.json", lines)
    pipeline = build(readers.nemo_asr, 1, {}, manifest_filepaths=manifest)
    server.put("data/c/a.WAV", local[0].read_bytes()[:-2])
    with pytest.raises(ObjectReplacedError) as info:
        take(pipeline, 4)
    assert info.value.filename == "s3://data/c/a.WAV"
