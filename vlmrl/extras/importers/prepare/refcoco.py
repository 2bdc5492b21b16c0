"""Makes rows of RefCOCO, RefCOCO+ and RefCOCOg in the REFER release's layout: one per expression, the box in a stated frame.

<dataset>/refs(<partition>).p       a pickle of plain data: refs with their sentences and split
<dataset>/instances.json            COCO annotations: boxes as (left, top, width, height) in pixels
images/mscoco/images/train2014/     the pictures
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.plain_pickle import load_plain
from vlmrl.extras.importers.prepare.prepare import Row, Skipped, in_frame, official, read_json, xyxy

IMAGES = "images/mscoco/images/train2014"
FRAMES = ("norm1000", "pixel")
_FRAME = {
    "norm1000": "Coordinates run from 0 to 1000 along each side of the image.",
    "pixel": "The image is {width} x {height} pixels; coordinates are pixels.",
}


def refcoco_rows(root: Path, split: str, *, dataset: str, partition: str, frame: str) -> Iterator[Row | Skipped]:
    """Rows of a split (`train`, `val`, `testA`, `testB`, `test`), with boxes (x1, y1, x2, y2) in `frame`.

    Raises:
        DataError: a file is missing, or a ref names an annotation or image that is not in `instances.json`.
    """
    refs_file = official(root, f"{dataset}/refs({partition}).p")
    refs = load_plain(refs_file.read_bytes(), str(refs_file))
    instances = read_json(official(root, f"{dataset}/instances.json"))
    images = {image["id"]: image for image in instances["images"]}
    boxes = {annotation["id"]: annotation["bbox"] for annotation in instances["annotations"]}
    for ref in refs:
        if ref["split"] != split:
            continue
        if ref["ann_id"] not in boxes or ref["image_id"] not in images:
            raise DataError(
                f"{refs_file}: ref {ref['ref_id']} has no annotation or image in instances.json; the files do not belong together"
            )
        image = images[ref["image_id"]]
        size = (image["width"], image["height"])
        box = in_frame(xyxy(boxes[ref["ann_id"]]), size, frame)
        for sentence in ref["sentences"]:
            name = f"{dataset}-{partition}-{sentence['sent_id']}"
            phrase = sentence["sent"].strip()
            if box is None or not phrase:
                yield Skipped(name, "empty box" if box is None else "empty expression", unit=ref["ref_id"])
                continue
            yield {
                "id": name,
                "task": "referring_expression",
                "answer_type": "bbox",
                "data_type": "image",
                "image": f"{IMAGES}/{image['file_name']}",
                "prompt": f'Locate what this phrase refers to: "{phrase}". {_FRAME[frame].format(width=size[0], height=size[1])}',
                "gt": {"boxes": [box]},
                "meta": {"ref_id": ref["ref_id"], "frame": frame, "size": list(size), "split": split},
            }
