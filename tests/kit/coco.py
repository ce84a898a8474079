"""Random annotation files of COCO, and random options of `fn.readers.coco`."""

import json
import re

import numpy as np

NAMES = ["{}.jpg", "a/{}.jpg", "b c/x {}.png", "é{}.jpg", "{}", "train/{:012d}.jpg"]
NUMBERS = [0, -0.0, 0.1, 0.09999999, 0.1000001, 1e-7, 2.5e1, 1e10, 123456789.123456789]


def number(random):
    """A coordinate: an integer, a decimal, a long fraction, or one at a limit."""
    kind = random.randrange(5)
    if kind == 0:
        return random.randint(0, 50)
    if kind == 4:
        return random.choice(NUMBERS)
    value = random.uniform(-5 if kind == 1 else 0, 60)
    return round(value, 2) if kind == 2 else value


def any_number(random):
    """Another one of three: of 1 to 25 digits, or about half-way between two float32."""
    kind = random.randrange(3)
    if kind == 0:
        return number(random)
    if kind == 1:
        first = np.float32(random.uniform(-10, 10) * 10.0 ** random.randint(-44, 37))
        half = (float(first) + float(np.nextafter(first, np.float32(0)))) / 2
        return f"#{half:.{random.randint(1, 25)}g}#"
    digits = str(random.randrange(10 ** random.randint(1, 25)))
    point = random.randint(0, len(digits))
    whole, fraction = digits[:point] or "0", digits[point:] and "." + digits[point:]
    power = random.choice(["", "", f"e{random.randint(-30, 38)}", f"E{random.randint(-60, 38):+}"])
    return f"#{random.choice(['', '-'])}{whole}{fraction}{power}#"


def polygon(random, within):
    """`within` pixels that can be drawn, or of any numbers."""
    count = 2 * random.randint(3, random.choice([4, 11]))
    if not within:
        return [any_number(random) for _ in range(count)]
    return [min(max(number(random), -5), 70) for _ in range(count)]


def rle(random, height, width):
    """Runs of pixels, as a list."""
    counts, left = [], height * width
    while left:
        run = random.randint(0 if not counts else 1, left)
        counts.append(run)
        left -= run
        if random.random() < 0.2 and left:
            counts.append(left)
            break
    if random.random() < 0.1:  # runs of no pixels are odd, and allowed
        at = random.randrange(len(counts))
        counts[at:at] = [0, 0]
    return {"size": [height, width], "counts": counts}


def shuffled(random, entries, chance):
    """A dictionary in another order, sometimes."""
    keys = list(entries)
    if random.random() < chance:
        random.shuffle(keys)
    return {key: entries[key] for key in keys}


def some_images(random, folder, *, largest, only_known):
    count = random.randint(3, 14)
    pools = [range(1, 40), range(10**6), [-3, 0, 2, 2**31 - 1, *range(50, 90)], range(1, count + 1)]
    pool = random.choice(pools)
    ids = random.sample([*pool], min(count, len(pool)))
    if random.random() < 0.3:
        ids.sort()
    form = NAMES[0] if only_known else random.choice(NAMES)
    images = []
    for each in ids:
        name = form.format(abs(each) + 7 * (each < 0))
        image = {"id": each, "file_name": name}
        image |= {"width": random.randint(1, largest), "height": random.randint(1, largest)}
        if random.random() < 0.2:
            inner = {"id": 99, "x": [1, {"id": 2}]}
            image |= {"license": 3, "coco_url": 'http://x/"q"', "nested": inner, "none": None}
            image["text"] = "\U0001f600 é \\"
        images.append(shuffled(random, image, 0.2))
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.randbytes(random.randint(1, 300)))
    return images


def some_segmentation(random, height, width, encode):
    kind = random.random()
    if kind < 0.55:
        return {
            "segmentation": [polygon(random, encode) for _ in range(random.choice([1, 1, 2, 3]))]
        }
    if kind < 0.65:
        return {"segmentation": []}
    if kind < 0.7 and encode is None:  # with masks of pixels, DALI crashes
        return {}
    runs = rle(random, height, width)
    if encode is not None and random.random() < 0.5:
        runs["counts"] = encode(runs, height, width)["counts"].decode()
    return {"segmentation": runs}


def write_annotations(random, folder, *, largest=60, crowd=0.3, only_known=False, encode=None):
    """Write ann.json and the images of it; returns the names of these.

    `only_known`: no object of an unknown image or category. `encode`: compresses an RLE.
    """
    images = some_images(random, folder / "img", largest=largest, only_known=only_known)
    strange = not only_known and random.random() < 0.3
    pool = [-3, -2, *range(9)] if strange else range(1, 95)
    draw = random.choices if strange else random.sample  # ids that are there twice
    known = draw([*pool], k=random.randint(1, 7))
    categories = [{"id": it, "name": f"c{it}", "supercategory": "s"} for it in known]
    by_id = {image["id"]: image for image in images}
    annotations = []
    for each in range(random.choice([0, 1, 5, 20, 60])):
        owner = random.choice([*by_id, *([] if only_known else [12345678, -77])])
        size = by_id.get(owner, {"width": 10, "height": 10})
        entry = {"id": each, "image_id": owner, "area": random.random()}
        entry["category_id"] = random.choice([*known, *([] if only_known else [777, 0])])
        entry["bbox"] = [any_number(random) for _ in range(4)]
        if random.random() < 0.8:
            entry["iscrowd"] = int(random.random() < crowd)
        entry |= some_segmentation(random, size["height"], size["width"], encode)
        if random.random() < 0.3:
            inner = {"occluded": False, "bbox": [9, 9, 9, 9]}
            entry |= {"keypoints": [1, 2, 3], "attributes": inner, "score": None}
        annotations.append(shuffled(random, entry, 0.3))
    data = {"info": {"year": 2017}, "licenses": [{"id": 1}]}
    data |= {"images": images, "annotations": annotations, "categories": categories}
    if random.random() < 0.3:
        data.pop("info")
    with open(folder / "ann.json", "w", encoding="utf-8") as file:
        indent, ascii_only = random.choice([None, None, 1]), random.random() < 0.5
        text = json.dumps(shuffled(random, data, 0.5), ensure_ascii=ascii_only, indent=indent)
        file.write(re.sub('"#(.*?)#"', r"\1", text))
    return [image["file_name"] for image in images]


def some_options(random, names):
    """Random arguments about annotations."""
    found = {}
    if random.random() < 0.35:
        found["images"] = random.choices(names, k=random.randint(1, 12))
    chances = {"ratio": 0.4, "ltrb": 0.4, "skip_empty": 0.3, "avoid_class_remapping": 0.3}
    chances |= {"polygon_masks": 0.5, "image_ids": 0.5}
    found |= {name: True for name, chance in chances.items() if random.random() < chance}
    if random.random() < 0.4:
        found["include_iscrowd"] = False
    if random.random() < 0.3:
        found["size_threshold"] = random.choice([0.0, 0.1, 5.0, 20.5, -1])
    return found


def write_numbered(folder, count):
    """Write ann.json, and images that are their ids."""
    images = [{"id": each, "file_name": f"{each}.bin"} for each in range(count)]
    for image in images:
        (folder / image["file_name"]).write_bytes(b"%d" % image["id"])
    (folder / "ann.json").write_text(json.dumps({"images": images}))
    return {"file_root": str(folder), "annotations_file": str(folder / "ann.json")}
