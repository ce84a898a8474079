"""Manifests of NeMo with random sound, which libsndfile writes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import soundfile

KEY = "audio_filepath"

CUTTABLE = [
    *(("WAV", kind) for kind in ("PCM_16", "PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")),
    *[
        ("WAV", "ULAW"),
        ("WAV", "ALAW"),
        ("WAVEX", "PCM_16"),
        ("WAVEX", "FLOAT"),
        ("RF64", "PCM_16"),
    ],
]
"""Formats and codings of which a segment is a range of bytes."""

CODED = [
    *[("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("OGG", "OPUS")],
    *[("WAV", "IMA_ADPCM"), ("WAV", "MS_ADPCM"), ("AIFF", "PCM_16"), ("AU", "PCM_16")],
    *[("W64", "PCM_16"), ("CAF", "ALAC_16"), ("NIST", "PCM_16"), ("IRCAM", "PCM_32")],
]
"""Those of which it is not, or whose headers are not read."""

_TEXTS = ["", "hello", '\u00e9 \U0001f600 "q" \\ \t', "a" * 300, "ends\u0000here"]


class Recording(NamedTuple):
    """A file of sound."""

    path: Path
    frames: int
    rate: int


def recording(
    path: Path, frames: int, rate: int, kind: Sequence[str], channels: int = 1
) -> Recording:
    """A file of random sound."""
    form, coding = kind
    sound = np.random.default_rng(frames + rate).uniform(-1, 1, (frames, channels))
    soundfile.write(path, sound, rate, subtype=coding, format=form)
    return Recording(path, soundfile.info(path).frames, soundfile.info(path).samplerate)


def some_recordings(
    random: Random, directory: Path, kinds: Sequence[Sequence[str]]
) -> list[Recording]:
    """A few files, of several rates and numbers of channels."""
    made = []
    for number in range(random.randint(1, 5)):
        kind, rate = random.choice(kinds), random.choice([8000, 16000, 22050, 44100, 48000])
        rate = 48000 if kind[1] == "OPUS" else rate
        frames = random.choice([1, 100, 5000, random.randint(1, 20000)])
        channels = random.choice([1, 1, 2, 3]) if "ADPCM" not in kind[1] else random.choice([1, 2])
        made.append(recording(directory / f"{number}.{kind[0]}", frames, rate, kind, channels))
    return made


def some_line(random: Random, recordings: Sequence[Recording]) -> str:
    """A line of JSON for a segment within a recording."""
    path, frames, rate = random.choice(recordings)
    line: dict[str, Any] = {KEY: str(path)}
    if random.random() < 0.5:
        line["offset"] = random.choice(
            [0, 0.0, frames / rate, random.randrange(frames) / rate, -1.5]
        )
    if random.random() < 0.6:
        cut = random.choice([random.randint(1, frames) / rate, random.random(), 1000, 0, 0.25, -1])
        line["duration"] = cut if random.random() < 0.7 else round(cut, random.randint(1, 6))
    if random.random() < 0.7:
        line["text"] = random.choice(_TEXTS)
    text = json.dumps(line, ensure_ascii=random.random() < 0.5)
    # More digits than a double has: DALI rounds in its own way.
    return text.replace("}", f"{random.randrange(10**4):04}}}") if text[-2:-1] in "123" else text


def write(path: Path, lines: Sequence[str | Mapping[str, Any]], end: str = "\n") -> str:
    """A manifest of these lines."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(text + end for text in texts), encoding="utf-8", newline="")
    return str(path)
