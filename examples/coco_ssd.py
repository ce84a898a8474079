"""The input of NVIDIA's SSD example by DALI's reader and by ours: all outputs are the same.

python examples/coco_ssd.py  # makes pictures and annotations in a temporary directory
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def
from PIL import Image

from dali_storage import readers

random, images, annotations = np.random.default_rng(0), list[Any](), list[Any]()
argparse.ArgumentParser(description=__doc__).parse_args()
root = Path(tempfile.mkdtemp())
(root / "images").mkdir()
for number in range(40):
    width, height = random.integers(200, 400, 2).tolist()
    pixels = random.integers(0, 60, (height, width, 3), np.uint8)
    for kind in random.integers(0, 3, number % 5).tolist():
        x, y, w, h = (random.uniform(0.1, 0.5, 4) * ([width, height] * 2)).astype(int).tolist()
        pixels[y : y + h, x : x + w, kind] += 60
        entry = {"id": len(annotations), "image_id": number, "category_id": 10 * kind}
        annotations.append(entry | {"bbox": [x, y, w, h], "iscrowd": 0})
    Image.fromarray(pixels).save(root / f"images/{number}.jpg")
    images.append({"id": number, "file_name": f"{number}.jpg", "width": width, "height": height})
categories = [{"id": 10 * kind} for kind in range(3)]
data = {"images": images, "annotations": annotations, "categories": categories}
(root / "annotations.json").write_text(json.dumps(data))

SCALES = (21, 45, 99, 153, 207, 261, 315)
anchors = list[Any]()  # the 8,732 default boxes of SSD300: left, top, right, bottom
for level, cells in enumerate((38, 19, 10, 5, 3, 1)):
    small, large = SCALES[level], np.sqrt(SCALES[level] * SCALES[level + 1])
    ratios = np.sqrt([1 / 2, 2, 1 / 3, 3] if 0 < level < 4 else [1 / 2, 2])
    sizes = [(small, small), (large, large), *((small * it, small / it) for it in ratios)]
    centres = np.mgrid[0.5:cells, 0.5:cells].reshape(2, -1).T[:, ::-1] * (300 / cells)
    anchors += [np.hstack([centres - np.divide(it, 2), centres + np.divide(it, 2)]) for it in sizes]
defaults = (np.concatenate(anchors) / 300).clip(0, 1).ravel().tolist()


@pipeline_def(batch_size=8, num_threads=2, device_id=None, seed=1)
def ssd(coco: Any) -> Any:
    files = {"file_root": root / "images", "annotations_file": root / "annotations.json"}
    jpegs, boxes, labels = coco(
        **files, name="Reader", ratio=True, ltrb=True, skip_empty=True, random_shuffle=True
    )
    crop: dict[str, Any] = {"aspect_ratio": [0.5, 2.0], "thresholds": [0, 0.1, 0.3, 0.5, 0.7, 0.9]}
    crop |= {"scaling": [0.3, 1.0], "bbox_layout": "xyXY", "num_attempts": 50}
    start, size, boxes, labels = fn.random_bbox_crop(boxes, labels, **crop)
    pictures = fn.resize(fn.decoders.image_slice(jpegs, start, size), size=(300, 300))
    return pictures, *fn.box_encoder(boxes, labels, anchors=defaults, criteria=0.5)


theirs, ours = ssd(fn.readers.coco), ssd(readers.coco)
for _ in range(2 * len(images) // 8):
    for wanted, found in zip(theirs.run(), ours.run(), strict=True):
        assert np.array_equal(wanted.as_array(), found.as_array())
print("the same pixels and targets:", ", ".join(str(it.shape()[0]) for it in ours.run()))
