"""Random RecordIO files and arguments: `readers.mxnet` beside `fn.readers.mxnet`, the oracle."""

from pathlib import Path

import numpy as np

from tests.kit import versions
from tests.kit.containers import RECORDIO_MAGIC, recordio_record
from tests.kit.parity import Case, ContainerParityTests, some_order


def some_record(random, number, labels):
    payload = random.randbytes(random.choice([0, 1, 7, 8, 30, 30, 5000]))
    for _ in range(random.choice([0, 0, 1, 2])):  # an image with the magic number is cut there
        at = random.randrange(len(payload) + 1)
        payload = payload[: at // 4 * 4] + RECORDIO_MAGIC + payload[at // 4 * 4 :]
    labels = random.randint(0, 3) if labels is None else labels
    label = random.random() if not labels else [random.random() for _ in range(labels)]
    return recordio_record(payload, label, number)


def some_files(random, root):
    """RecordIO files and the arguments that name them."""
    count, labels = random.randint(1, 12), random.choice([0, 0, 1, 3, None])
    records = [some_record(random, number, labels) for number in range(count)]
    data = b"".join(records)
    starts = np.cumsum([0, *map(len, records)]).tolist()
    files = random.randint(1, min(4, count)) if versions.has("2.2") else 1  # see of_containers()
    cuts = sorted(random.sample(starts[1:-1], files - 1))
    if files == 2 and cuts[0] != starts[-3]:  # where DALI misses that the last record is in file 2
        cuts[0] += random.choice([0, 9])  # a record begins in one file and ends in the next
    bounds = [0, *cuts, len(data)]
    paths = []
    for number in range(files):
        paths.append(str(root / f"{number}.rec"))
        Path(paths[-1]).write_bytes(data[bounds[number] : bounds[number + 1]])
    pairs = [(number, start) for number, start in enumerate(starts[:-1])]
    if random.random() < 0.3:
        random.shuffle(pairs)
    if random.random() < 0.2:
        pairs.append(random.choice(pairs))  # an empty record
    index = root / "index"
    index.write_text("".join(f"{key}\t{start}\n" for key, start in pairs))
    one = len(paths) == 1 and random.random() < 0.5
    return {"path": paths[0] if one else paths, "index_path": str(index)}, count


class TestMxnet(ContainerParityTests):
    reader = "mxnet"

    def some_case(self, random, directory):
        arguments, count = some_files(random, directory)
        order = some_order(random, count, by_container=True)
        return Case(arguments | order, ours=random.choice([{}, {"backend": "memory"}]))
