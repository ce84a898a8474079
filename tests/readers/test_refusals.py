"""Arguments that readers refuse: a table of the values of each, and the words of the errors.

What a reader refuses of its data is in its own file; values of the types that DALI converts are in
test_arguments.py; the classes of errors are in test_error_classes.py.
"""

from typing import Any

import numpy as np
import pytest
from nvidia.dali import types
from nvidia.dali.tfrecord import FixedLenFeature, VarLenFeature, int64, string

from dali_storage import readers
from tests.kit.parity import build, numbered
from tests.kit.paths import ROOT
from tests.kit.process import open_files

NUMBER = FixedLenFeature((), int64, 0)
ALL = [
    "caffe",
    "caffe2",
    "coco",
    "columns",
    "file",
    "litdata",
    "lmdb",
    "manifest",
    "mds",
    "mxnet",
    "nemo_asr",
]
ALL += ["npz", "numpy", "parquet", "records", "sequence", "tfrecord", "webdataset"]
CONTAINERS = ["caffe", "caffe2", "mxnet", "tfrecord", "webdataset"]
SOURCE = {"file": "files", "mxnet": "path", "records": "files", "tfrecord": "path"}
SOURCE |= dict.fromkeys(("caffe", "caffe2", "lmdb"), "path")
SOURCE |= dict.fromkeys(("parquet", "webdataset"), "paths")
NO_FILES = {"files": None, "labels": None}
REPLACE = {"on_error": "replace"}
SECONDS = [0, -1.5, float("nan"), float("inf"), 10**400, True, np.bool_(True), "60", [60]]
ONE = {"files": [__file__] * 3}
TWO = {"a": ONE, "b": ONE}

Row = tuple[dict[str, Any], str]
COMMON: list[Row] = [  # to all readers, by one mechanism: tried with readers.file
    ({"backend": "no-such"}, "no-such.*memory.*python-file"),
    ({"backend_options": 5}, "backend_options"),
    ({"prefetch_queue_depth": 0}, "prefetch_queue_depth"),
    ({"prefetch_queue_depth": 2**31 - 1}, "prefetch_queue_depth"),
    *(
        ({"buffer_bytes": wrong}, "buffer_bytes must be an integer from 1 to .*, not ")
        for wrong in (0, -1, 1.5, "1", True, 2**63)
    ),
    *(({"stall_after": it}, "a number of seconds above 0, or None for no w") for it in SECONDS),
    ({"seed": "x"}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"random_shuffle": "yes"}, "random_shuffle"),
    ({"name": 5}, "name"),
    ({"preserve": "no"}, "preserve"),
    ({"lazy_init": "no"}, "lazy_init"),
    ({"return_index": "no"}, "return_index"),
    ({"pinned": "False"}, "pinned must be True or False"),
    ({"source_info": "no"}, "source_info must be True or False"),
    ({"on_error": "skip"}, "on_error must be 'raise', or 'replace' .*not 'skip'"),
    (REPLACE | {"max_replaced": -1}, "max_replaced must be at least 0, not -1"),
    (REPLACE | {"max_replaced": "x"}, "max_replaced must be an integer"),
    ({"max_replaced": 5}, "max_replaced needs on_error='replace'"),
    ({"bad_samples": "bad.jsonl"}, "bad_samples needs on_error='replace'"),
    (REPLACE | {"bad_samples": "s3://b/x"}, "bad_samples must be a local path"),
    ({"check": "yes"}, "check must be True or False"),
    ({"weights": "often"}, "weights must be 'balanced', 'sqrt'"),
    ({"weights": "balanced", "order": [1]}, "weights and order cannot both be given"),
    ({"weights": "balanced", "stick_to_shard": True}, "stick_to_shard=True and weights exclude"),
    ({"weights": "sqrt", "shuffle_after_epoch": True}, "shuffle_after_epoch=True and weights"),
]
OWN: dict[str, list[Row]] = {
    "caffe": [
        ({"image_available": False, "label_available": False}, "no output is left"),
        ({"image_available": "no"}, "image_available must be True or False, not 'no'"),
        ({"index_path": ["a"]}, "index_path must have one index for each file, not 1 for 3"),
        ({"path": "s3://b/db/data.mdb"}, "index_path must be given for 's3://b/db/data.mdb'"),
    ],
    "caffe2": [
        ({"label_type": 1}, r"label_type must be 0, 2 or 4 \(no sparse labels\), not 1"),
        ({"label_type": 5}, r"label_type must be 0, 2 or 4 \(no sparse labels\), not 5"),
        ({"label_type": "x"}, "label_type must be an integer, not 'x'"),
        ({"num_labels": "x"}, "num_labels must be an integer, not 'x'"),
        ({"additional_inputs": -1}, "additional_inputs must be from 0 to 1000, not -1"),
        ({"additional_inputs": 3_000_000}, "additional_inputs must be from 0 to 1000, not 3000000"),
        ({"path": ""}, "path must be names of files, not ''"),
        ({"bbox": "no"}, "bbox must be True or False, not 'no'"),
        ({"label_type": 4, "image_available": False}, "image_available must be True: there is no"),
    ],
    "coco": [
        ({"device": "gpu"}, "not 'gpu': annotations are in host memory"),
        ({"file_root": None}, "file_root must be given"),
        ({"file_root": "ftp://x/y"}, "file_root must be a local path or a URL"),
        ({"annotations_file": None}, "one of annotations_file and preprocessed_annotations must"),
        ({"annotations_file": "ftp://x/y"}, "annotations_file must be a local path or a URL"),
        ({"preprocessed_annotations": "s3://x/y"}, "preprocessed_annotations must be a local"),
        ({"save_preprocessed_annotations": True}, "save_preprocessed_annotations_dir must be"),
        ({"save_preprocessed_annotations_dir": "x"}, "save_preprocessed_annotations_dir must be"),
        ({"polygon_masks": True, "pixelwise_masks": True}, "polygon_masks and pixelwise_masks"),
        ({"masks": True, "pixelwise_masks": True}, "polygon_masks and pixelwise_masks"),
        ({"size_threshold": "x"}, "size_threshold must be a number, not 'x'"),
        ({"ratio": "yes"}, "ratio must be True or False, not 'yes'"),
        ({"images": [5]}, "images must be str, bytes or os.PathLike, not 5"),
        ({"images": [b"\xff.bin"]}, "images must be UTF-8, as DALI's .*xff.bin"),
        ({"images": {"a"}}, "images must be one value or a list"),
        ({"images": ["0.bin", "x"]}, "images has 'x', which is not a file_name"),
    ],
    "columns": [
        ({"files": 5}, "files must be one value or a list, not 5"),
        ({"files": []}, r"files must have an entry for each output, .* not \[\]"),
        ({"files": {}}, "files must have an entry for each output, .* not {}"),
        ({"files": ["a.jpg"]}, r"files\[0\] must have one {}, .*, not 'a.jpg'; or give a list of"),
        ({"files": ["{}.a", "{}/{}"]}, r"files\[1\] must have one {}, .*'{}/{}'"),
        ({"files": {"left": "l"}}, r"files\['left'\] must have one {}"),
        ({"files": ["a{}\0"]}, r"files\[0\] must be a path without NUL"),
        ({"files": ["ftp://h/{}"]}, r"files\[0\] must be a local path or a URL"),
        ({"files": ["{}.a", ["b"]]}, "an entry for each output, all templates or all lists of"),
        ({"files": ["{}.a", 5]}, "an entry for each output, all templates or all lists of"),
        ({"files": [["a"], 5]}, r"files\[1\] must be one value or a list, not 5"),
        ({"files": [["a"], [5]]}, r"files\[1\] must be str, bytes or os.PathLike, not 5"),
        ({"files": [["a"], []]}, r"files\[1\] must not be empty"),
        ({"files": [["a"], ["b", ""]]}, r"files\[1\] must be names of files, not ''"),
        ({"files": [["a"], {"b"}]}, r"files\[1\] must be one value or a list, not the set"),
        ({"files": {"x": ["a"], "y": ["b"] * 2}}, r"one length: files\['x'\] has 1, .* has 2"),
        ({"labels": [1] * 22}, "labels must be one for each sample: 22 for 23"),
        ({"labels": [1.5] * 22 + ["a"]}, "labels must be an integer, not 'a'"),
        ({"keys": ["a"]}, "keys and missing are for templates, but files are lists"),
        ({"missing": "skip"}, "keys and missing are for templates, but files are lists"),
        ({"missing": "no"}, "missing must be 'error' or 'skip', not 'no'"),
        ({"files": ["{}"]}, "labels of templates need keys"),
        ({"files": ["{}"], "keys": []}, "keys must not be empty"),
        ({"files": ["{}"], "keys": 5}, "keys must be one value or a list, not 5"),
        ({"files": ["{}"], "keys": [5]}, "keys must be str, bytes or os.PathLike, not 5"),
        ({"files": ["{}"], "keys": ["a\0"]}, "keys must be a path without NUL"),
        ({"files": ["{}"], "keys": ""}, "keys must be names of files, not ''"),
        ({"file_root": 5}, "file_root must be str, bytes or os.PathLike"),
        ({"device": "gpu"}, "device='gpu': .* reads into host memory"),
    ],
    "file": [
        ({"labels": [1]}, "labels"),
        ({"files": "s3://b/a", "backend": "python-file"}, "'python-file' cannot read 's3://b/a'"),
        (NO_FILES | {"file_root": "ftp://x/y"}, "file_root must be a local path or a URL"),
        (NO_FILES | {"file_list": "ftp://x/y"}, "file_list must be a local path or a URL"),
        ({"file_filters": []}, "file_filters"),
        (NO_FILES | {"file_root": ROOT / "tests", "file_filters": "*.nothing"}, "nothing"),
        ({"device": "mixed"}, "device must be 'cpu' or 'gpu', not 'mixed'"),
        ({"device": 0}, "device must be"),
        ({"device": "gpu", "check": True}, "check=True needs batches in host memory"),
        ({"exclude": "s3://b/bad.jsonl"}, "exclude must be a local path"),
    ],
    "litdata": [
        ({"columns": 0}, "columns must be one value or a list, not 0"),
        ({"device": "gpu"}, "device must be 'cpu', not 'gpu': records are split on the CPU"),
        ({"split": "train"}, "unexpected keyword argument 'split'"),
    ],
    "lmdb": [
        ({"labels": [1]}, "labels must be one for each sample: 1 for 23"),
        ({"shuffle": "all"}, "shuffle must be 'dali' or 'samples', not 'all'"),
        ({"device": "gpu"}, "device='gpu'"),
        ({"path": "nowhere"}, "No such file"),
    ],
    "manifest": [
        ({"columns": ["text"]}, r"columns must be keys and their types, not \['text'\]"),
        ({"columns": {"text": "str"}}, "columns must be keys and str, int or float, not 'text'"),
        ({"columns": {"n": np.dtype(int)}}, "columns must be keys and str, int or float, not 'n'"),
        ({"columns": {5: int}}, "columns must be keys and str, int or float, not 5"),
        ({"path": 5}, "path must be the key of a path, not 5"),
        ({"segments": "no"}, "segments must be True or False"),
        ({"return_rate": "no"}, "return_rate must be True or False"),
        ({"file_root": "ftp://x"}, "file_root must be a local path or a URL"),
        ({"manifests": []}, "manifests must not be empty"),
        ({"manifests": "s3://b/m", "backend": "python-file"}, "cannot read 's3://b/m'"),
        ({"device": "gpu"}, "device must be 'cpu', not 'gpu'"),
    ],
    "mds": [
        ({"columns": []}, "columns must not be empty: give a name for each output"),
        ({"columns": [b"n"]}, "columns must be strings, not b'n'"),
        ({"device": "gpu"}, "device must be 'cpu', not 'gpu': records are split on the CPU"),
        ({"path": "nowhere"}, "No such file or directory: 'nowhere/index.json'"),
        ({"path": "ftp://x/y"}, "path must be a local path or a URL"),
        ({"path": []}, "path must be str, bytes or os.PathLike, not .."),
        ({"shuffle": "all"}, "shuffle must be 'dali' or 'samples', not 'all'"),
        ({"split": 5}, "split must be str, bytes or os.PathLike, not 5"),
    ],
    "mix": [
        ({"weights": {"a": 1}}, "weights must name each of 'a', 'b'; missing: 'b'"),
        ({"weights": {"a": 1, "b": 1}, "schedule": [(0, {"a": 1, "b": 1})]}, "cannot both be giv"),
        ({"epoch_size": 0}, "epoch_size must be at least 1, not 0"),
        ({"epoch_size": 2, "num_shards": 3}, "must be at least num_shards, 3, not 2"),
        ({"labels": "mine"}, "labels must be 'own', 'joint' or 'drop', not 'mine'"),
        ({"labels": "joint"}, "source 'a' has no class names"),
        ({"labels": "drop"}, "labels='drop' is for sources with a reader or options of their own"),
        ({"random_shuffle": True}, "random_shuffle=True and readers.mix exclude each other"),
        ({"initial_fill": 5}, "initial_fill=5 and readers.mix exclude"),
        ({"order": [1]}, "order is for one data set"),
        ({"reader": "files"}, "reader must be one of caffe, caffe2, columns"),
        ({"sources": [], "labels": "joint"}, "sources must be a mapping"),
        ({"sources": {"a": ONE | {"seed": 3}}}, "source 'a' has no argument 'seed'"),
        ({"sources": {"a": {"path": "x"}}, "reader": "tfrecord"}, "format_options needs features"),
        ({"sources": {"a": {}}, "reader": "webdataset"}, "source 'a' needs paths"),
        ({"sources": {"a": {"reader": "mds", "path": "x"}}}, "source 'a' needs columns"),
        ({"format_options": {"ext": "jpg"}}, "format_options has no argument 'ext'"),
        ({"sources": TWO | {"c": {"files": ["s3://b/k"]}}}, "only 'c' has URLs"),
        ({"sources": {"a": ONE | {"weights": [1, 2]}}}, "source 'a': weights: 2 numbers for 3"),
        ({"sources": {"a": ONE | {"weights": "even"}}}, "weights must be 'balanced', 'sqrt'"),
    ],
    "mxnet": [
        ({"index_path": ["a", "b"]}, "index_path must be one file for all of path, not 2"),
        ({"index_path": []}, "index_path must not be empty"),
        ({"device": "gpu"}, "not 'gpu': records are parsed"),
    ],
    "npz": [
        ({"device": "gpu"}, "device must be 'cpu', not 'gpu': headers are parsed"),
        ({"members": []}, "members must not be empty: give a name for each"),
        ({"members": ["n", 1]}, "members must be strings, not 1"),
        ({"verify": "no"}, "verify must be True or False, not 'no'"),
        ({"file_root": None}, "one of file_root, files and file_list must be given"),
        ({"roi_start": 0}, "unexpected keyword argument 'roi_start'"),
    ],
    "numpy": [
        ({"device": "gpu"}, "device must be 'cpu', not 'gpu': headers are parsed"),
        ({"roi_start": 0, "rel_roi_start": 0.5}, "roi_start and rel_roi_start cannot both"),
        ({"roi_end": 0, "rel_roi_shape": 0.5}, "roi_end and rel_roi_shape cannot both"),
        ({"roi_end": "x"}, "roi_end must be an integer, not 'x'"),
        ({"roi_end": 2**31}, "roi_end must fit in 32 bits"),
        ({"rel_roi_end": "x"}, "rel_roi_end must be a number, not 'x'"),
        ({"rel_roi_end": {1, 2}}, "rel_roi_end must be one value or a list, not the set"),
        ({"fill_value": []}, r"fill_value must be a number, not \[\]"),
        ({"out_of_bounds_policy": "edge"}, "out_of_bounds_policy must be .*, not 'edge'"),
        ({"file_filter": ["*"]}, "file_filter must be str, bytes or os.PathLike"),
        ({"use_o_direct": "no"}, "use_o_direct must be True or False"),
        ({"use_o_direct": True, "backend": "memory"}, "'memory' has no option direct.*leave out"),
        ({"use_o_direct": True, "backend_options": {"direct": False}}, "use_o_direct=True and b"),
        ({"files": ["x"], "file_list": "list"}, "files and file_list cannot both be given"),
        ({"file_root": None}, "one of file_root, files and file_list must be given"),
        ({"files": []}, "files must not be empty"),
        ({"files": "ftp://bucket/a.npy"}, "files must be a local path"),
        ({"file_root": "ftp://bucket"}, "file_root must be a local path"),
    ],
    "parquet": [
        ({"columns": 5}, "columns must be one value or a list, not 5"),
        ({"columns": ["image", 5]}, "columns must be strings, not 5"),
        ({"columns": []}, "columns must not be empty"),
        ({"label": 5}, "label must be the name of a column or None, not 5"),
        ({"label": None, "classes": ["a"]}, "classes needs label, the column of labels"),
        ({"classes": ["a", "b", "a"]}, r"classes must have each name once, not \['a', 'b', 'a'\]"),
        ({"missing": "none"}, "missing must be 'error', 'skip' or 'empty', not 'none'"),
        ({"index_paths": ["a"]}, "index_paths must have one index for each file, not 1 for 3"),
        ({"shuffle": "all"}, "shuffle must be 'dali' or 'samples', not 'all'"),
    ],
    "records": [
        ({"offsets": [-1] * 23}, r"offsets must be from 0 to 2\*\*63 - 1, not -1 \(sample 0\)"),
        ({"sizes": np.arange(23) - 5}, r"sizes must be from 0 .* not -5 \(sample 0\)"),
        ({"sizes": -1}, r"sizes must be from 0 .* not -1 \(sample 0\)"),
        ({"sizes": True}, "sizes must be a sequence of integers, not True"),
        ({"sizes": 1.5}, "sizes must be a sequence of integers, not 1.5"),
        ({"sizes": [1.0] * 23}, "sizes must be integers below 2.*63, not float64"),
        ({"offsets": [True] * 23}, "offsets must be integers below 2.*63, not bool"),
        ({"offsets": ["1"] * 23}, "offsets must be integers below 2.*63, not <U1"),
        ({"offsets": [0] * 22 + [2**63]}, "offsets must be integers below 2.*63, not float64"),
        ({"offsets": np.uint64([0] * 22 + [2**63])}, "offsets must be .* not 9223372036"),
        ({"offsets": [0] * 22 + [2**64]}, "offsets must be integers below 2.*63, not object"),
        ({"offsets": [0] * 22 + [[1]]}, "offsets must be a sequence of integers: "),
        ({"offsets": np.zeros((23, 1), int)}, r"offsets must be .* not int64 of shape \(23, 1\)"),
        ({"offsets": None}, "offsets must be a sequence of integers, not None"),
        ({"offsets": 5}, "offsets must be a sequence of integers, not 5"),
        ({"offsets": []}, "offsets must not be empty"),
        ({"sizes": [5] * 22}, "sizes must match offsets: 22 values for 23"),
        ({"file_ids": [0] * 24}, "file_ids must match offsets: 24 values for 23"),
        ({"file_ids": None}, "file_ids must be given, because there are 3 files"),
        ({"file_ids": [3] * 23}, r"file_ids must be from 0 to 2, .* not 3 \(sample 0\)"),
        ({"file_ids": [0] * 22 + [-1]}, r"file_ids must be from 0 to .* not -1 \(sample 22\)"),
        ({"labels": [1] * 22}, "labels must be one for each sample: 22 for 23"),
        ({"labels": np.ones(23)}, "labels must be a sequence of integers, not float64"),
        ({"labels": ["a"] * 23}, "labels must be an integer, not 'a'"),
        ({"files": [5, 6, 7]}, "files must be str, bytes or os.PathLike, not 5"),
        ({"offsets": "s3://bucket/a.npy"}, "offsets must be a local path"),
        ({"sizes": 10**6}, "must be within the files"),
        ({"device": "gpu"}, "device='gpu'"),
        ({"backend": "xnvme-bam"}, "xnvme-bam"),
    ],
    "nemo_asr": [
        ({"normalize_text": True}, "unexpected keyword argument 'normalize_text'"),
        ({"dtype": types.UINT8}, "dtype must be FLOAT, INT16 or INT32"),
        ({"dtype": "float"}, "dtype must be FLOAT"),
        ({"quality": 100.5}, "quality must be from 0 to 100, not 100.5"),
        ({"quality": float("nan")}, "quality must be a finite float32, not nan"),
        ({"sample_rate": "x"}, "sample_rate must be a number, not 'x'"),
        ({"sample_rate": float("inf")}, "sample_rate must be a finite float32, not inf"),
        ({"max_duration": 1e39}, r"max_duration must be a finite float32, not 1e\+39"),
        ({"min_duration": "x"}, "min_duration must be a number"),
        ({"read_text": "no"}, "read_text must be True or False"),
        ({"downmix": "no"}, "downmix must be True or False"),
        ({"manifest_filepaths": []}, "manifest_filepaths must not be empty"),
        ({"device": "gpu"}, "device must be 'cpu', not 'gpu': sound is decoded on the CPU"),
    ],
    "sequence": [
        ({"step": 0}, "step must be from 1 to 2147483647, not 0"),  # DALI never ends
        ({"stride": 0}, "stride must be from 1"),
        ({"stride": -1}, "stride must be from 1 .* not -1"),
        ({"sequence_length": 0}, "sequence_length must be from 1 to 999, not 0"),
        ({"sequence_length": -1}, "sequence_length must be from 1 .* not -1"),
        ({"sequence_length": 1000}, "sequence_length must be from 1 to 999, not 1000"),
        ({"sequence_length": 2**31 - 1}, "sequence_length must be from 1 to 999"),
        ({"sequence_length": "x"}, "sequence_length must be an integer, not 'x'"),
        ({"sequence_length": 3, "stride": 12}, "has 25 frames.*'stream' has 23"),
        ({"file_root": "stream"}, "no images"),
        ({"file_root": "stream/000.png"}, "Not a directory: 'stream/000.png'"),
        ({"file_root": "https://host/x"}, "'https://host/x': a web server does not"),
        ({"image_type": types.ANY_DATA}, "image_type must be .* not .*ANY_DATA"),
        ({"image_type": "RGB"}, "image_type must be RGB, BGR, GRAY or YCbCr, not RGB"),
        ({"device": "gpu"}, "device must be 'cpu' or 'mixed', not 'gpu'"),
    ],
    "tfrecord": [
        ({"index_path": ["x", "y"]}, "index_path must have one index for each file, not 2"),
        ({"device": "gpu"}, "not 'gpu': records are parsed on the CPU"),
        ({"features": None}, "features must be a dict"),
        ({"features": [("a", NUMBER)]}, "features must be a dict"),
        ({"features": {"a": "string"}}, r"\['a'\] must be a FixedLenFeature or VarLenFeature"),
        ({"features": {1: NUMBER}}, "features must have strings for names, not 1"),
        ({"features": {}}, "features must not be empty"),
        ({"features": {"\udcff": NUMBER}}, "features must have names that UTF-8 can encode"),
        ({"features": {"a": VarLenFeature(string, "")}}, r"features\['a'\]: a string must be"),
        ({"features": {"a": FixedLenFeature([2], string, "")}}, "a string must be a FixedLen"),
        ({"features": {"n": NUMBER, "b": FixedLenFeature([-1], int64, 0)}}, r"\['b'\]: its shape"),
        ({"features": {"b": VarLenFeature([-1], int64, 0)}}, r"features\['b'\]: its shape must be"),
        ({"features": {"b": FixedLenFeature([2**62], int64, 0)}}, r"features\['b'\]: its shape"),
    ],
    "webdataset": [
        ({"index_paths": ["a", "b"]}, "index_paths must have one .* each file, not 2 for 3"),
        ({"index_paths": ""}, "index_paths must be names of files"),
        ({"ext": []}, "ext must not be empty"),
        ({"ext": [1]}, "ext must be strings, not 1"),
        ({"ext": ["n", "m"]}, "dtypes must match ext: 1 for 2 outputs"),
        ({"dtypes": types.BOOL}, "dtypes must be integers, or floats.*BOOL"),
        ({"dtypes": "complex64"}, "dtypes must be integers, .*'complex64'"),
        ({"dtypes": np.longdouble}, "dtypes must be integers, .*longdouble"),
        ({"dtypes": ">i4"}, "dtypes must be integers, .*'>i4'"),
        ({"missing_component_behavior": "none"}, "missing_component_behavior must be .*'none'"),
        ({"case_sensitive_extensions": "no"}, "case_sensitive_extensions must be True or False"),
    ],
}
OURS = "litdata", "lmdb", "manifest", "mds", "parquet", "records"
DALIS = [name for name in ALL if name not in OURS]
ROWS = [
    *(("file", *row) for row in COMMON),
    *((reader, *row) for reader, rows in OWN.items() for row in rows),
    *((reader, {"num_shards": 99}, "num_shards must be at most 23") for reader in ALL),
    *((reader, {"backend_options": {"dirct": True}}, "dirct.*direct") for reader in ALL),
    *((reader, {"skip_cached_images": True}, "skip_cached_images must be F") for reader in DALIS),
    *((reader, {"shuffle": "all"}, "shuffle must be .*, not 'all'") for reader in CONTAINERS),
    *((reader, {"device": "gpu"}, "device must be 'cpu', not 'gpu'") for reader in CONTAINERS),
    *((reader, {name: []}, f"{name} must not be empty") for reader, name in SOURCE.items()),
    *((reader, {name: "ftp://x/y"}, f"{name} must be a local") for reader, name in SOURCE.items()),
]


@pytest.mark.parametrize(("reader", "wrong", "message"), ROWS, ids=lambda value: str(value)[:50])
def test_a_wrong_argument_is_refused_by_name(reader, wrong, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    operator = numbered(reader, tmp_path, [9, 9, 5])(readers)
    with pytest.raises((ValueError, TypeError, RuntimeError, OSError), match=message):
        build(operator, 1, {}, **wrong)
    assert not open_files(tmp_path)


@pytest.mark.parametrize(("name", "said"), [("video", ": use readers.file, then fn"), ("fiel", "")])
def test_a_reader_that_is_only_in_dali_says_what_to_use(name, said):
    with pytest.raises(AttributeError, match=f"^module .* has no attribute '{name}'{said}") as it:
        getattr(readers, name)
    assert (it.value.name, it.value.obj) == (name, readers)  # for Python's own suggestions
