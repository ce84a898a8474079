"""`readers.coco`: images with boxes, labels and masks."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from ..contract._types import PathLike
from ..contract.catalog import Catalog
from ..contract.options import dali_flag
from ..contract.remote import Remote
from ..formats.coco import dump, masks, origin
from ..formats.coco.annotations import Coco, CocoCatalog
from ..formats.coco.options import CocoOptions
from ..formats.coco.origin import Source
from ..formats.coco.parse import parse
from ..samples.locations import local_path, location
from .arguments import DaliArguments, DataNode, Prepared, makes_reader, pick, prepare
from .containers import on_cpu
from .plugs import Common


class CocoArguments(DaliArguments, total=False):
    """The arguments of `coco`."""

    annotations_file: PathLike | None
    avoid_class_remapping: bool | None
    dump_meta_files: bool | None
    dump_meta_files_path: PathLike | None
    file_root: PathLike | None
    image_ids: bool | None
    images: PathLike | Sequence[PathLike] | None
    include_iscrowd: bool | None
    ltrb: bool | None
    masks: bool | None
    meta_files_path: PathLike | None
    pixelwise_masks: bool | None
    polygon_masks: bool | None
    preprocessed_annotations: PathLike | None
    ratio: bool | None
    save_img_ids: bool | None
    save_preprocessed_annotations: bool | None
    save_preprocessed_annotations_dir: PathLike | None
    size_threshold: float | None
    skip_empty: bool | None


@dataclass(frozen=True, kw_only=True)
class _Places:
    """The arguments beside `CocoOptions`, also by names that DALI has renamed."""

    annotations_file: PathLike | None = ""
    dump_meta_files: bool | None = False
    dump_meta_files_path: PathLike | None = None
    file_root: PathLike | None = None
    masks: bool | None = False
    meta_files_path: PathLike | None = None
    preprocessed_annotations: PathLike | None = ""
    save_img_ids: bool | None = False
    save_preprocessed_annotations: bool | None = False
    save_preprocessed_annotations_dir: PathLike | None = ""


@makes_reader(_Places, CocoOptions)
def coco(**given: Unpack[CocoArguments]) -> Prepared[tuple[DataNode, ...]]:
    """`fn.readers.coco` with a choice of storage backend.

    The arguments are the same, and so are the images, annotations, order, shards and epochs, bit
    for bit. For all other arguments see `readers.file`. docs/coco.md has more.

    Args:
        file_root: the directory or the URL of the names of images.
        annotations_file: the JSON file, a path or a URL. Anything that makes DALI's parser lose
            annotations, crash, or never return is refused.
        preprocessed_annotations: instead, a directory written by DALI or
            `python -m dali_storage index --coco`. The latter records its source: then
            `annotations_file` and the arguments below may be given as well, and are compared.
        images: the `file_name` of each image to read, in this order. By default all, by their ids.
            Unlike in DALI, an unknown name is an error.
        ratio: boxes and vertices as fractions of the width and height of their image.
        ltrb: boxes as left, top, right, bottom instead of left, top, width, height.
        size_threshold: objects with a lower width or height, in pixels, are left out.
        include_iscrowd: include objects with `iscrowd`.
        skip_empty: leave out images without objects.
        avoid_class_remapping: labels are category ids. By default they are 1, 2, 3 and so on in the
            order of "categories"; 0 is an unknown category.
        polygon_masks: return polygons and vertices.
        pixelwise_masks: return masks of pixels. Needs the package pycocotools.
        image_ids: return the ids of images.
        save_preprocessed_annotations: write the annotations to the existing directory
            `save_preprocessed_annotations_dir`, in the format of the command above.
        dump_meta_files, dump_meta_files_path, meta_files_path, save_img_ids: old names of
            `save_preprocessed_annotations`, `save_preprocessed_annotations_dir`,
            `preprocessed_annotations` and `image_ids`.
        masks: as polygon_masks, but polygons have the first and last coordinate, not vertex.
        device: "cpu" or None. For a GPU use `pinned`, and `.gpu()` on an output.

    Returns:
        `(images, boxes, labels, [polygons, vertices | masks], [ids], [index])`. Images are as in
        `readers.file`; the others are in new memory.

        * images: the files' bytes; uint8, 1-D.
        * boxes: float32, shape (objects, 4).
        * labels: int32, shape (objects,).
        * polygons: int32, shape (polygons, 3): the number of the object in the image, and the begin
          and end of the polygon's vertices among the vertices of the image.
        * vertices: float32, shape (vertices, 2).
        * masks: int32, shape (height, width, 1): the label of each pixel, or 0.
        * ids: int32, shape (1,).
        * index: int64, shape (1,).

    Raises:
        ValueError, TypeError: an argument is wrong; or a value in annotations_file is missing or
            not of its type: with the entry, its id, the field, the value and the remedy. Or
            `preprocessed_annotations` are incomplete, or from another source.
        OSError: the annotations cannot be read.
        BackendUnavailable: as `readers.file`; or pixelwise_masks lacks its package.

    The running pipeline raises the errors of `readers.file`.
    """
    common, own = pick(Common, given), pick(_Places, given)
    on_cpu(common.device, "annotations are in host memory")
    in_coordinates = dali_flag("masks", own.masks)
    if own.file_root is None:
        raise ValueError("file_root must be given: the directory or URL of the images")
    root = location("file_root", own.file_root)
    new_names: dict[str, Any] = {"polygon_masks": True} if in_coordinates else {}
    new_names |= {"image_ids": own.save_img_ids} if own.save_img_ids else {}
    options = CocoOptions.of({**given, **new_names}, given)
    if options.pixelwise_masks:
        masks.package()
    name = location("annotations_file", own.annotations_file or b"")
    folder = _local("preprocessed_annotations", own.meta_files_path or own.preprocessed_annotations)
    target = _local(
        "save_preprocessed_annotations_dir",
        own.dump_meta_files_path or own.save_preprocessed_annotations_dir,
    )
    if not (name or folder):
        raise ValueError("one of annotations_file and preprocessed_annotations must be given")
    saves = "save_preprocessed_annotations"
    if dali_flag(saves, own.dump_meta_files or own.save_preprocessed_annotations) != bool(target):
        raise ValueError(f"{saves} and {saves}_dir must be given together")
    if target and folder:
        raise ValueError(f"{saves} and preprocessed_annotations cannot both be given")

    def find(_: Any, remote: Remote | None) -> Catalog:
        source = Source.of(name, remote) if name else None
        if folder:
            content = dump.load(folder)
            made = origin.require_same(folder, content, options, source)
            names, annotations = dump.read(f"preprocessed_annotations={folder!r}", content, made)
        else:
            assert source is not None
            names, annotations = parse(source, options, target)
        if in_coordinates:
            annotations = annotations.in_coordinates()
        return CocoCatalog.of(names, root, annotations)

    return prepare(common, find, Coco(options), names=[root])


def _local(name: str, value: PathLike | None) -> str:
    return os.fsdecode(local_path(name, value)) if value else ""
