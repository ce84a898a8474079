"""`readers.coco` beside what parity compares: where annotations come from, and what is refused."""

import json
import os
import pickle
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from nvidia.dali import fn

from dali_storage import readers
from dali_storage.cli import index
from dali_storage.contract.errors import BackendUnavailable, ContainerChangedError
from dali_storage.formats.coco.annotations import CocoCatalog
from dali_storage.formats.coco.origin import Source
from tests.kit.coco import write_annotations
from tests.kit.parity import build, take

KILLS = [[4e8, 2, 3, 4, 5, 6]], [[9e5, 1, -9e5, 3] * 2000]
RLE, POLYGON = {"size": [4, 4], "counts": [0, 4, 12]}, [[0, 0, 2, 0, 2, 2, 0, 2]]
PARSED = {"polygon_masks": True, "image_ids": True, "ltrb": True, "include_iscrowd": False}


@pytest.fixture
def images(tmp_path):
    """Arguments of images and their annotations."""
    write_annotations(Random(5), tmp_path)
    return {"file_root": str(tmp_path / "img"), "annotations_file": str(tmp_path / "ann.json")}


@pytest.fixture
def few(tmp_path):
    """Four images with an object each, whose boxes and labels are their numbers from 1 on."""
    return write_few(tmp_path)


def write_few(folder):
    (folder / "img").mkdir()
    for each in range(4):
        (folder / f"img/{each} a.jpg").write_bytes(bytes([each] * 3))
    size = {"width": 4, "height": 4}
    objects = [
        {"id": it, "image_id": it, "category_id": it + 1, "bbox": [it + 1] * 4} for it in range(4)
    ]
    data = {
        "images": [{"id": it, "file_name": f"{it} a.jpg", **size} for it in range(4)],
        "annotations": [each | {"segmentation": POLYGON} for each in objects],
        "categories": [{"id": it + 1} for it in range(4)],
    }
    (folder / "ann.json").write_text(json.dumps(data))
    return {"file_root": str(folder / "img"), "annotations_file": str(folder / "ann.json")}


def annotations_of(given):
    """The file of the annotations and what it has."""
    path = Path(given["annotations_file"])
    return path, json.loads(path.read_text())


def both(**arguments):
    """Two epochs of ours and of DALI's."""
    made = [build(module.coco, 3, {}, **arguments) for module in (readers, fn.readers)]
    return [take(each, 10) for each in made]


def boxes(pipeline):
    return [np.asarray(box).tolist() for box in pipeline.run()[1]]


def ours(given, batch_size=4, **more):
    return build(readers.coco, batch_size, {}, **given, **more)


def made_by_command(given, folder, *options):
    words = ["--coco", given["annotations_file"], "-o", str(folder), *options]
    assert index.main(words) == 0
    return {"file_root": given["file_root"], "preprocessed_annotations": str(folder)}


def test_what_the_command_writes_is_taken_by_ours_and_dalis_reader(images, tmp_path, capsys):
    options = ["--" + name.replace("_", "-") for name, it in PARSED.items() if it]
    given = made_by_command(images, tmp_path / "made", *options, "--no-include-iscrowd")
    assert " images with " in capsys.readouterr().out
    masks = {"polygon_masks": True, "image_ids": True}
    expected = take(build(fn.readers.coco, 3, {}, **images, **PARSED), 10)
    assert both(**given, **masks) == [expected] * 2
    same = build(readers.coco, 3, {}, **images | given, **PARSED)
    assert take(same, 10) == expected


def test_annotations_that_are_saved_are_those_that_dali_saves(images, tmp_path):
    saves = {"save_preprocessed_annotations": True}
    for name, module in (("theirs", fn.readers), ("mine", readers)):
        (tmp_path / name).mkdir()
        target = {"save_preprocessed_annotations_dir": str(tmp_path / name)}
        build(module.coco, 3, {}, **images, **PARSED, **saves, **target)
    mine, theirs = [
        {it.name: it.read_bytes() for it in (tmp_path / each).iterdir()}
        for each in ("mine", "theirs")
    ]
    record = json.loads(mine.pop("made_of.json"))
    assert mine == theirs
    assert record["options"] == PARSED


def test_masks_of_a_dump_with_ratio_are_those_of_the_json(few, tmp_path):
    """DALI draws the ratios as if they were pixels."""
    pytest.importorskip("pycocotools")
    path = Path(few["annotations_file"])
    path.write_text(path.read_text().replace(" a.jpg", ".jpg"))  # DALI splits names at spaces
    for image in (tmp_path / "img").iterdir():
        image.rename(image.with_name(image.name.replace(" a", "")))
    given = made_by_command(few, tmp_path / "made", "--ratio", "--pixelwise-masks")
    expected = take(ours(few, ratio=True, pixelwise_masks=True), 1)
    (batch,) = take(ours(given, pixelwise_masks=True), 1)
    assert [batch] == expected
    (theirs,) = take(build(fn.readers.coco, 4, {}, **given, pixelwise_masks=True), 1)
    assert [sum(map(bool, mask[2])) for mask in batch[-1]] == [4] * 4
    assert all(sum(map(bool, mask[2])) < 4 for mask in theirs[-1])


def test_names_with_spaces_are_read_from_a_dump_as_they_are(few, tmp_path):
    given = made_by_command(few, tmp_path / "made")
    (tmp_path / "made/made_of.json").unlink()  # as if DALI had made it, which splits them
    assert take(ours(given), 1) == take(ours(few), 1)
    assert take(build(fn.readers.coco, 4, {}, **few), 1) == take(ours(few), 1)


def test_old_names_of_arguments_mean_what_they_mean_to_dali(images, tmp_path):
    with pytest.warns(DeprecationWarning, match=r"polygon_masks|deprecated alias"):  # by DALI
        mine, theirs = both(**images, masks=True, save_img_ids=True)
    assert mine == theirs
    assert len(mine[0]) == 6
    (tmp_path / "made").mkdir()
    saves = {"dump_meta_files": True, "dump_meta_files_path": str(tmp_path / "made")}
    build(readers.coco, 3, {}, **images, **saves, masks=True)
    given = {"file_root": images["file_root"], "meta_files_path": str(tmp_path / "made")}
    with pytest.warns(DeprecationWarning, match=r"polygon_masks|deprecated alias"):
        mine, theirs = both(**given, masks=True)
    assert mine == theirs


@pytest.mark.parametrize("masks", [False, True])
def test_annotations_are_in_the_catalog_and_survive_a_pickle(masks, few):
    if masks:
        pytest.importorskip("pycocotools")
    pipeline = ours(few, name="R", pixelwise_masks=masks)
    catalog = readers.catalog(pipeline, "R")
    again = pickle.loads(pickle.dumps(catalog))
    for each in (catalog, again):
        assert isinstance(each, CocoCatalog)
        assert each.annotations.objects.columns[1].tolist() == [1, 2, 3, 4]
        assert each.checksum() == catalog.checksum()
        assert not masks or each.annotations.masks.of(2).sum() == 4 * 3


def test_what_a_user_writes_to_outputs_does_not_come_again(few):
    pipeline = ours(few)
    first = pipeline.run()
    for output in first[1:]:
        for each in range(4):
            np.asarray(output[each])[...] = -1
    assert boxes(pipeline) == [[[it + 1.0] * 4] for it in range(4)]


def test_masks_have_the_layout_that_dali_gives_them(few):
    pytest.importorskip("pycocotools")
    made = [build(it.coco, 4, {}, **few, pixelwise_masks=True) for it in (readers, fn.readers)]
    layouts = [[output.layout() for output in pipeline.run()] for pipeline in made]
    assert layouts[0] == layouts[1] == ["", "", "", "HWC"]


def test_a_replaced_image_has_the_annotations_of_the_other_one(few):
    Path(few["file_root"], "2 a.jpg").unlink()
    with pytest.warns(match="2 a.jpg"):
        images, found, labels = ours(few, on_error="replace").run()
    for number in range(4):
        (label,) = np.asarray(labels[number])
        assert np.asarray(found[number]).tolist() == [[label] * 4]
        assert np.asarray(images[number]).tolist() == [label - 1] * 3
    assert labels[2].shape() == [1]


@pytest.mark.parametrize("field", ["bbox", "category_id"])
def test_a_checkpoint_of_other_annotations_is_refused(field, few):
    options = {"enable_checkpointing": True}
    saved = build(readers.coco, 2, options, **few).checkpoint()
    path, data = annotations_of(few)
    data["annotations"][3][field] = {"bbox": [1, 1, 1, 2], "category_id": 1}[field]
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"checkpoint was made with samples whose names"):
        build(readers.coco, 2, options | {"checkpoint": saved}, **few).run()


def test_annotations_and_images_may_be_objects(server, few):
    annotations_file = "s3://data/x/ann.json"
    server.put("data/x/ann.json", Path(few["annotations_file"]).read_bytes())
    for path in Path(few["file_root"]).iterdir():
        server.put(f"data/img/{path.name}", path.read_bytes())
    expected = take(ours(few), 2)
    remote = {"file_root": "s3://data/img", "annotations_file": annotations_file}
    assert take(ours(remote), 2) == expected
    assert take(ours(few | {"annotations_file": annotations_file}), 2) == expected
    assert take(ours(few | {"file_root": "s3://data/img"}), 2) == expected


def masked(few, module, *segmentations):
    """The outputs of annotations with these masks, of which the last two are of one image."""
    path, data = annotations_of(few)
    for entry, segmentation in zip(data["annotations"], segmentations, strict=True):
        entry |= {"segmentation": segmentation, "image_id": min(entry["id"], 2)}
        if segmentation == "missing":
            del entry["segmentation"]
    path.write_text(json.dumps(data))
    return take(build(module.coco, 4, {}, **few, pixelwise_masks=True), 1)


@pytest.mark.parametrize("none", ["missing", None, "", 5, True])
def test_an_annotation_without_a_mask_is_delivered_without_it(none, few):
    pytest.importorskip("pycocotools")
    for segmentations in ((POLYGON, none, POLYGON, none), (POLYGON, RLE, [], none)):
        expected = masked(few, fn.readers, *segmentations)
        assert masked(few, readers, *segmentations) == expected
    # Here DALI crashes, or reads memory that was never written.
    for segmentations in ((RLE, none, RLE, none), (none, RLE, none, POLYGON)):
        expected = masked(few, fn.readers, *([] if it == none else it for it in segmentations))
        assert masked(few, readers, *segmentations) == expected


@pytest.mark.parametrize("segmentation", KILLS, ids=["many coordinates", "far ones"])
def test_a_mask_that_would_kill_the_process_is_refused(segmentation, few):
    pytest.importorskip("pycocotools")
    with pytest.raises(ValueError, match=r"annotations_file .*'1 a\.jpg'"):
        masked(few, readers, RLE, segmentation, [], [])


def test_annotations_that_change_while_they_are_read_are_refused(few, monkeypatch):
    right = Source.read

    def changes(source):
        found = right(source)
        os.utime(few["annotations_file"], ns=(0, 0))
        return found

    monkeypatch.setattr(Source, "read", changes)
    with pytest.raises(ContainerChangedError, match="changed while it was read"):
        ours(few)


def test_what_leaves_no_image_is_named(few, tmp_path):
    with pytest.raises(ValueError, match="skip_empty=True leaves no image of"):
        ours(few, skip_empty=True, size_threshold=9)
    with pytest.raises(FileNotFoundError):
        ours(few | {"annotations_file": str(tmp_path / "none.json")})
    os.mkfifo(tmp_path / "pipe")  # opening one waits for somebody to write
    with pytest.raises(OSError, match="not a regular file"):
        ours(few | {"annotations_file": str(tmp_path / "pipe")})


def test_a_directory_to_save_to_is_missing_before_anything_is_parsed(few, monkeypatch, tmp_path):
    monkeypatch.setattr(Source, "read", pytest.fail)
    saves = {"save_preprocessed_annotations": True}
    with pytest.raises(FileNotFoundError, match="none"):
        ours(few, **saves, save_preprocessed_annotations_dir=str(tmp_path / "none"))


def test_a_default_that_is_given_is_compared_with_a_dump(few, tmp_path):
    given = made_by_command(few, tmp_path / "made", "--ratio", "--no-include-iscrowd")
    assert boxes(ours(given | few, ratio=True))[0] == [[0.25] * 4]
    for wrong in ({"ratio": False}, {"include_iscrowd": True}):
        with pytest.raises(ValueError, match=f"made with {next(iter(wrong))}="):
            ours(given | few, **wrong)


def test_an_rle_that_is_not_of_its_image_is_named_with_the_file(few):
    pytest.importorskip("pycocotools")
    path, data = annotations_of(few)
    data["annotations"][2]["segmentation"] = {"size": [4, 5], "counts": [20], "more": 1}
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"^annotations_file '.*ann.json': the RLE of object 0 of"):
        ours(few, pixelwise_masks=True)
    # Runs of 3, 11, 3 and 3 pixels: C shifts the sign of the last number out of its integer.
    data["annotations"][2]["segmentation"] = {"size": [5, 4], "counts": "3;3PPPPPP@"}
    data["images"][2]["height"] = 5
    path.write_text(json.dumps(data))
    made = [build(it.coco, 4, {}, **few, pixelwise_masks=True) for it in (readers, fn.readers)]
    assert take(made[0], 1) == take(made[1], 1)


@pytest.mark.parametrize(
    ("module", "package", "masks"),
    [("pycocotools.mask", "pycocotools", True), ("rapidjson", "rapidjson", False)],
)
def test_a_package_that_is_missing_is_named(module, package, masks, few, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    install = rf"{package} is not installed; pip install .*\[coco\]'"
    with pytest.raises(BackendUnavailable, match=install):
        ours(few, pixelwise_masks=masks)
