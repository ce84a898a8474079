"""Random manifests and arguments: `readers.nemo_asr` beside `fn.readers.nemo_asr`, the oracle."""

import json
from pathlib import Path

from nvidia.dali import types

from tests.kit import manifests
from tests.kit.parity import Case, ParityTests, some_order


class TestNemoAsr(ParityTests):
    reader = "nemo_asr"
    cases = 4, 150
    # It is a placeholder in the signature of DALI's.
    other_defaults = ParityTests.other_defaults | {"dtype"}

    def some_case(self, random, directory):
        cuttable, coded = manifests.CUTTABLE, manifests.CODED
        kinds = random.choice([cuttable, coded, [*cuttable, *coded]])
        recordings = manifests.some_recordings(random, directory, kinds)
        counts = [random.randint(1, 15) for _ in range(random.choice([1, 1, 2, 3]))]
        paths = [
            manifests.write(
                directory / f"{number}.json",
                [manifests.some_line(random, recordings) for _ in range(count)],
                random.choice(["\n", "\r\n"]),
            )
            for number, count in enumerate(counts)
        ]
        arguments = {
            "manifest_filepaths": paths[0] if len(paths) == 1 else paths,
            "downmix": random.random() < 0.6,
            "dtype": random.choice([types.FLOAT, types.FLOAT, types.INT16, types.INT32]),
            "read_idxs": True,
        }
        if random.random() < 0.4:
            arguments["sample_rate"] = random.choice([8000.0, 16000.0, 11025.0, 44100.0, 0.0])
            arguments["quality"] = random.choice([0.0, 10.0, 50.0, 100.0])
        if random.random() < 0.2:
            # Those of a line, too: the limits of DALI are float32.
            lines = [
                json.loads(line) for path in paths for line in Path(path).read_bytes().splitlines()
            ]
            found = [line["duration"] for line in lines if line.get("duration", 0) > 0] or [0.3]
            arguments |= {"max_duration": max(random.choice(found), 0.3)}
            arguments |= {"min_duration": random.choice([0.0, 0.01, min(found)])}
        for name in ("read_text", "read_sample_rate"):
            if random.random() < 0.2:
                arguments[name] = False
        order = some_order(random, sum(counts), by_container=False)
        return Case(arguments | order, ours=random.choice([{}, {"backend": "memory"}]))
