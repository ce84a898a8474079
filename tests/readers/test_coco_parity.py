"""Random annotations and options: `readers.coco` beside `fn.readers.coco`, the oracle."""

import shutil
from random import Random

import numpy as np
import pytest
from nvidia.dali import fn

from dali_storage import readers
from tests.kit.coco import some_options, write_annotations
from tests.kit.parity import Case, ParityTests, build, seeds, some_order, take
from tests.kit.tiers import by_tier


class TestCoco(ParityTests):
    reader = "coco"
    new = ParityTests.new | {"masks", "save_img_ids", "meta_files_path"}
    new |= {"dump_meta_files", "dump_meta_files_path"}
    cases = 15, 500

    def some_case(self, random, directory):
        names = write_annotations(random, directory)
        options = some_options(random, names)
        parsed = {"annotations_file": str(directory / "ann.json"), **options}
        arguments = {"file_root": str(directory / "img"), **parsed}
        if random.random() < 0.2 and not any(" " in name for name in names):  # DALI splits them
            arguments = self.dumped(directory, arguments)
        arguments |= some_order(random, len(options.get("images", names)), by_container=False)
        return Case(arguments, ours=random.choice([{}, {"backend": "memory"}]))

    def dumped(self, directory, arguments):
        """The arguments of what DALI has written of these."""
        (directory / "dump").mkdir()
        saves = {"save_preprocessed_annotations_dir": str(directory / "dump")}
        try:
            build(fn.readers.coco, 1, {}, save_preprocessed_annotations=True, **arguments, **saves)
        except RuntimeError:
            return arguments  # nothing is left
        names = {"file_root", "polygon_masks", "image_ids"} & arguments.keys()
        kept = {name: arguments[name] for name in names}
        return kept | {"preprocessed_annotations": saves["save_preprocessed_annotations_dir"]}


def test_random_masks_of_pixels_are_those_of_dali(tmp_path):
    mask = pytest.importorskip("pycocotools.mask")
    several = 0
    for seed in seeds(by_tier(8, 200)):
        random, directory = Random(f"masks {seed}"), tmp_path / str(seed)
        directory.mkdir()
        kind = {"largest": 50, "crowd": 0.2, "only_known": True, "encode": mask.frPyObjects}
        names = write_annotations(random, directory, **kind)
        options = some_options(random, names) | {"pixelwise_masks": True, "polygon_masks": False}
        arguments = {"file_root": str(directory / "img"), **options}
        arguments |= {"annotations_file": str(directory / "ann.json"), "name": "R"}
        size = len(options.get("images", names))
        try:
            expected = take(build(fn.readers.coco, size, {}, **arguments), 1)
        except RuntimeError:  # nothing is left
            with pytest.raises(ValueError, match="skip_empty"):
                build(readers.coco, size, {}, **arguments)
            continue
        assert take(build(readers.coco, size, {}, **arguments), 1) == expected, seed
        masks = [np.frombuffer(it[2], np.int32) for batch in expected for it in batch[3]]
        several += sum(len(np.unique(it)) > 2 for it in masks)
        shutil.rmtree(directory)
    assert several
