"""Random directories, lists and arguments: `readers.file` beside `fn.readers.file`, the oracle."""

from typing import Any

from tests.kit.parity import Case, ParityTests, some_order

FOLDERS = ["0", "10", "9", "a", "a b", "B", ".hid", "é", "empty"]
NAMES = ["x.jpg", "Y.JPEG", "z z.png", ".h.bmp", "n.txt", "w.wav", "[b].jpg", "ü.tif"]
FILTERS: list[dict[str, Any]] = [
    {},
    {"file_filters": "*"},
    {"file_filters": ["*.jp*g", "[!x]*.png"]},
    {"file_filters": ["*.JPG", "*.JPEG"], "case_sensitive_filter": True},
    {"dir_filters": ["[!a]*"]},
    {"dir_filters": ["?", "kept"], "file_filters": "*.jpg"},
]


def some_names(random, directory, paths):
    """Arguments that name the files: by their directory, by a list or one by one."""
    root, kind = str(directory), random.choice(["root", "root", "list", "files"])
    if kind == "root":
        return {"file_root": root, **random.choice(FILTERS)}
    labels = [random.choice([0, 7, 2**31 + 1, 2**32 + 3]) for _ in paths]
    if kind == "files":
        names, given = [f"{root}/{path}" for path in paths], {}
        if random.random() < 0.5:
            names, given = paths, {"file_root": root}
        return given | {"files": names, "labels": random.choice([None, labels])}
    lines = [f"{path} {label}\r\n" for path, label in zip(paths, labels, strict=True)]
    (directory / "list").write_text("\n".join(lines))
    return {"file_list": f"{root}/list"} | random.choice([{}, {"file_root": root}])


class TestFile(ParityTests):
    reader = "file"
    new = ParityTests.new | {"exclude"}
    cases = 20, 300
    ours = ({}, {"backend": "memory"}, {"backend_options": {"direct": True}})

    def some_case(self, random, directory):
        paths = [f"{random.choice(FOLDERS)}/{random.choice(NAMES)}" for _ in range(20)]
        paths = ["kept/one.jpg", *paths[: random.randint(3, 20)]]
        if random.random() < 0.5:
            paths += ["loose.jpg", "kept/deeper/two.jpg"]
        for path in paths:
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(random.randbytes(random.choice([0, 1, 9])))
        for folder in random.choices(FOLDERS, k=random.randrange(4)):
            (directory / folder).mkdir(exist_ok=True)
        order = some_order(random, len({*paths}), by_container=False)
        order["dont_use_mmap"] = True  # so that DALI, too, serves files without bytes
        return Case(some_names(random, directory, paths) | order, ours=random.choice(self.ours))

    def test_xnvme_file_reads_random_data_sets_as_dali_does(self, io, tmp_path, monkeypatch):
        direct = io in ("io_uring", "libaio")  # the others fail at the end of a file
        options = [{}, {"queue_depth": 1}, {"direct": direct}]
        ours = [{"backend": "xnvme-file", "backend_options": {"io": io, **it}} for it in options]
        monkeypatch.setattr(self, "ours", ours)
        monkeypatch.setattr(self, "cases", (40, 40))
        self.test_random_data_sets_are_read_as_dali_reads_them(False, tmp_path)
