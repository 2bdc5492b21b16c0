"""Rows of every shape that users bring, and what becomes of each through `load_source`: the table of docs/data.md is made of it.

`python -m tests.support.shapes` writes the table again; `tests/unit/data/test_shapes.py` fails where it differs.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from vlmrl.config.section import SourceSection
from vlmrl.data.adapters import ImportOptions
from vlmrl.data.source import load_source
from vlmrl.errors import DataError
from vlmrl.types import Sample

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
BEGIN, END = "<!-- shapes: begin, written by `python -m tests.support.shapes` -->", "<!-- shapes: end -->"
SIZE = (300, 168)
"""Width and height of a.png and b.png."""
Told = tuple[str, str, tuple[str, ...]]
"""(question with its earlier turns, gold answer, paths of the media) of a sample."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One row of the table. `rows` are written to `file`; `read` is what they become, or `refused` what the error says."""

    group: str
    name: str
    example: str
    """As the table shows it."""
    rows: Sequence[Any] | str | bytes
    set: dict[str, Any] = field(default_factory=dict)
    """Options of the source."""
    file: str = "rows.jsonl"
    read: tuple[Told, ...] = ()
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a shape."""

    samples: tuple[Sample, ...] = ()
    error: str = ""


def outcome(shape: Shape, folder: Path) -> Outcome:
    """Write the files of a shape and load them as a run would."""
    for name in ("a.png", "b.png"):
        Image.new("RGB", SIZE, (200, 40, 40)).save(folder / name)
    path = folder / shape.file
    rows = json.loads(json.dumps(shape.rows).replace("MEDIA_ROOT", str(folder))) if not isinstance(shape.rows, str | bytes) else shape.rows
    if isinstance(rows, bytes):
        path.write_bytes(rows)
    elif isinstance(rows, str):
        path.write_text(rows, encoding="utf-8")
    elif path.suffix == ".parquet":
        _parquet(path, shape.rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    source = SourceSection.model_validate({"path": shape.file, **_tuples(shape.set)})
    try:
        options = ImportOptions.of(source, folder)
        samples = load_source(path, media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None, options=options)
    except DataError as error:
        return Outcome(error=str(error))
    return Outcome(samples=tuple(samples))


def told(sample: Sample) -> Told:
    return sample.asked, sample.answer, tuple(ref.path for ref in sample.media)


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _parquet(path: Path, rows: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    png = (path.parent / "a.png").read_bytes()

    def with_bytes(value: Any) -> Any:
        if value == "PNG":
            return {"bytes": png, "path": None}
        return [with_bytes(one) for one in value] if isinstance(value, list) else value

    pq.write_table(pa.Table.from_pylist([{key: with_bytes(value) for key, value in row.items()} for row in rows]), path)


def human(*texts: str) -> list[dict[str, str]]:
    return [{"from": "gpt" if i % 2 else "human", "value": text} for i, text in enumerate(texts)]


def chat(*contents: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant" if i % 2 else "user", "content": content} for i, content in enumerate(contents)]


OPEN = {"answer_type": "exact_text"}
DOG = ("What is it?", "A dog", ("a.png",))
_TWO = chat("<image>Who is it?", "A referee", "Where?<image>", "Outside")
_TWO_MEDIA = {"messages": _TWO, "images": ["a.png", "b.png"]}
_FIRST = ("Who is it?", "A referee", ("a.png",))
_LAST = ("Who is it?\n-> A referee\nWhere?", "Outside", ("a.png", "b.png"))
_ASK = {"type": "text", "text": "What is it?"}


def _part(**part: Any) -> list[dict[str, Any]]:
    return [{"messages": chat([part, _ASK], "A dog")}]


CHATS = (
    Shape(
        group="LLaVA",
        name="`image` and `conversations`",
        example='`{"image": "a.png", "conversations": [{"from": "human", "value": "<image>..."}, ...]}`',
        rows=[{"image": "a.png", "conversations": human("<image>\nWhat is it?", "A dog")}],
        set=OPEN,
        read=(DOG,),
    ),
    Shape(
        group="LLaVA",
        name="the placeholder at the end",
        example='`"What is it?\\n<image>"`',
        rows=[{"image": "a.png", "conversations": human("What is it?\n<image>", "A dog")}],
        set=OPEN,
        read=(DOG,),
    ),
    Shape(
        group="LLaVA",
        name="no placeholder",
        example='`"What is it?"`',
        rows=[{"image": "a.png", "conversations": human("What is it?", "A dog")}],
        set=OPEN,
        read=(DOG,),
    ),
    Shape(
        group="LLaVA",
        name="a video",
        example='`{"video": "v.mp4", "conversations": [... "<video>..." ...]}`',
        rows=[{"video": "v.mp4", "conversations": human("<video>\nWhat is it?", "A dog")}],
        set=OPEN,
        read=(("What is it?", "A dog", ("v.mp4",)),),
    ),
    Shape(
        group="LLaVA",
        name="`<image>` for a video (LLaVA-Video)",
        example='`{"video": "v.mp4", "conversations": [... "<image>..." ...]}`',
        rows=[{"video": "v.mp4", "conversations": human("<image>\nWhat is it?", "A dog")}],
        set=OPEN,
        read=(("What is it?", "A dog", ("v.mp4",)),),
    ),
    Shape(
        group="Several turns",
        name="nothing said",
        example='`{"messages": [user, assistant, user, assistant]}`',
        rows=[_TWO_MEDIA],
        set=OPEN,
        refused="turns: 'messages[2]' is a second question; set 'turns' of the source: first, last or split",
    ),
    Shape(
        group="Several turns",
        name="the first question",
        example="the same",
        rows=[_TWO_MEDIA],
        set={**OPEN, "turns": "first"},
        read=(_FIRST,),
    ),
    Shape(
        group="Several turns",
        name="the last, the others as context",
        example="the same",
        rows=[_TWO_MEDIA],
        set={**OPEN, "turns": "last"},
        read=(_LAST,),
    ),
    Shape(
        group="Several turns",
        name="one row per answer",
        example="the same",
        rows=[_TWO_MEDIA],
        set={**OPEN, "turns": "split"},
        read=(_FIRST, _LAST),
    ),
    Shape(
        group="Several turns",
        name="of LLaVA or ShareGPT",
        example='`{"image": ..., "conversations": [human, gpt, human, gpt]}`',
        rows=[{"image": "a.png", "conversations": human("<image>\nWho is it?", "A referee", "Where?", "Outside")}],
        set={**OPEN, "turns": "split"},
        read=(_FIRST, ("Who is it?\n-> A referee\nWhere?", "Outside", ("a.png",))),
    ),
    Shape(
        group="Messages",
        name="Hugging Face: typed parts and `images`",
        example='`{"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", ...}]}, ...], "images": ["a.png"]}`',
        rows=[{"messages": chat([{"type": "image"}, _ASK], "A dog"), "images": ["a.png"]}],
        set=OPEN,
        read=(DOG,),
    ),
    Shape(
        group="Messages",
        name="a local `url`",
        example='`{"type": "image", "url": "a.png"}`',
        rows=_part(type="image", url="a.png"),
        set=OPEN,
        read=(DOG,),
    ),
    Shape(
        group="Messages",
        name="OpenAI's `image_url`",
        example='`{"type": "image_url", "image_url": {"url": "a.png"}}`',
        rows=_part(type="image_url", image_url={"url": "a.png", "detail": "low"}),
        set=OPEN,
        read=(DOG,),
    ),
    Shape(
        group="Messages",
        name="LLaMA-Factory v1",
        example='`{"type": "image_url", "value": "a.png"}, {"type": "text", "value": ...}`',
        rows=[
            {
                "messages": chat(
                    [{"type": "image_url", "value": "a.png"}, {"type": "text", "value": "What is it?"}],
                    [{"type": "text", "value": "A dog"}],
                )
            }
        ],
        set=OPEN,
        read=(DOG,),
    ),
    Shape(
        group="Messages",
        name="`file://` below the media root",
        example='`{"type": "image", "image": "file:///media/root/a.png"}`',
        rows=_part(type="image", image="file://MEDIA_ROOT/a.png"),
        set=OPEN,
        read=(DOG,),
    ),
    Shape(
        group="Messages",
        name="an absolute path below the media root",
        example='`{"image": "/media/root/a.png", ...}`',
        rows=[{"image": "MEDIA_ROOT/a.png", "prompt": "What is it?", "answer": "A dog"}],
        set=OPEN,
        read=(DOG,),
    ),
    Shape(
        group="Messages",
        name="`file://` elsewhere",
        example='`{"type": "image", "image": "file:///etc/a.png"}`',
        rows=_part(type="image", image="file:///etc/a.png"),
        set=OPEN,
        refused="forbidden: 'images[0]': media path 'file:///etc/a.png' is a URL",
    ),
    Shape(
        group="Messages",
        name="an absolute path elsewhere",
        example='`{"image": "/etc/a.png", ...}`',
        rows=[{"image": "/etc/a.png", "prompt": "What is it?", "answer": "A dog"}],
        set=OPEN,
        refused="forbidden: 'images[0]': media path '/etc/a.png' is absolute",
    ),
    Shape(
        group="Messages",
        name="a picture on the web",
        example='`{"type": "image", "url": "https://..."}`',
        rows=_part(type="image", url="https://example.org/a.png"),
        set=OPEN,
        refused="is a URL or names a drive; nothing is downloaded, download it ahead of time",
    ),
    Shape(
        group="Messages",
        name="OpenRLHF-M: `prompt` is JSON text",
        example='`{"prompt": "[{\\"role\\": \\"user\\", ...}]", "answer": "A dog"}`',
        rows=[{"prompt": json.dumps(chat([{"type": "image", "image": "a.png"}, _ASK])), "answer": "A dog"}],
        set=OPEN,
        read=(DOG,),
    ),
    Shape(
        group="Messages",
        name="OpenRLHF-M: `message`",
        example='`{"message": "[{\\"role\\": \\"user\\", ...}]", "answer": "A dog"}`',
        rows=[{"message": json.dumps(chat([{"type": "image", "image": "file://MEDIA_ROOT/a.png"}, _ASK])), "answer": "A dog"}],
        set=OPEN,
        read=(DOG,),
    ),
    Shape(
        group="Messages",
        name="JSON text that is cut",
        example='`{"prompt": "[{\\"role\\": \\"user\\", ..."}`',
        rows=[{"prompt": '[{"role": "user", "content": "What', "answer": "A dog"}],
        set=OPEN,
        refused="json: 'prompt' begins like a list of messages as JSON text",
    ),
    Shape(
        group="Messages",
        name="sound",
        example='`{"messages": [...], "audios": ["a.wav"]}`',
        rows=[{"messages": chat("<audio>What is it?", "A dog"), "audios": ["a.wav"]}],
        set=OPEN,
        refused="sound: 'audios': sound is not read; leave these rows out",
    ),
)
_BOX_ASK = human("<image>\nWhere is the dog?", "[[30, 16.8, 150, 84]]")
_BOX = {"image": "a.png", "conversations": _BOX_ASK}
_PIXEL = {"answer_type": "bbox", "frame": "pixel"}
_BOXES = ("Where is the dog?", '{"boxes": [[100, 100, 500, 500]]}', ("a.png",))
GOLD = (
    Shape(
        group="InternVL",
        name="`width` and `height` of the file",
        example='`{"image": "a.png", "width": 300, "height": 168, "conversations": [...]}`',
        rows=[{**_BOX, "width": 300, "height": 168}],
        set=_PIXEL,
        read=(_BOXES,),
    ),
    Shape(
        group="InternVL",
        name="another size than the file has",
        example='`{"width": 640, "height": 480, ...}`',
        rows=[{**_BOX, "width": 640, "height": 480}],
        set=_PIXEL,
        refused="size: 'width/height' says 640x480, the file a.png (upright) is 300x168",
    ),
    Shape(
        group="InternVL",
        name="several pictures",
        example='`{"image": ["a.png", "b.png"], "width_list": [300, 300], "height_list": [168, 168], ...}`',
        rows=[
            {
                "image": ["a.png", "b.png"],
                "width_list": [300, 300],
                "height_list": [168, 168],
                "conversations": human("<image><image>What is it?", "A dog"),
            }
        ],
        set=OPEN,
        read=(("What is it?", "A dog", ("a.png", "b.png")),),
    ),
    Shape(
        group="InternVL",
        name="one of them wrong",
        example='`"width_list": [300, 30]`',
        rows=[
            {
                "image": ["a.png", "b.png"],
                "width_list": [300, 30],
                "height_list": [168, 168],
                "conversations": human("<image><image>What is it?", "A dog"),
            }
        ],
        set=OPEN,
        refused="size: 'width_list[1]/height_list[1]' says 30x168, the file b.png (upright) is 300x168",
    ),
    Shape(
        group="InternVL",
        name="the meta file",
        example='`{"sharegpt4v": {"root": "coco", "annotation": "s.jsonl", ...}}`',
        file="meta.json",
        rows='{"sharegpt4v": {"root": "coco", "annotation": "s.jsonl", "repeat_time": 1}}',
        refused="meta file of InternVL); give each as a source of its own: sharegpt4v -> {path: s.jsonl, media_root: coco}",
    ),
    Shape(
        group="Gold answers",
        name="several right answers",
        example='`{"answer": ["a dog", "dog"]}`',
        rows=[{"image": "a.png", "prompt": "What is it?", "answer": ["A dog", "dog"]}],
        set=OPEN,
        read=(DOG,),
    ),
    Shape(
        group="Gold answers",
        name="several right numbers",
        example='`{"answer": ["3", "4"]}`',
        rows=[{"image": "a.png", "prompt": "How many?", "answer": ["3", "4"]}],
        set={"answer_type": "number"},
        refused="answer: the gold answer is a list; several right answers are read for 'exact_text' and 'short_text' only",
    ),
    Shape(
        group="Gold answers",
        name="Qwen's own form of a box",
        example='`` ```json [{"bbox_2d": [...], "label": "dog"}]``` ``',
        rows=[
            {"image": "a.png", "prompt": "Where is the dog?", "answer": '```json\n[{"bbox_2d": [30, 16.8, 150, 84], "label": "dog"}]\n```'}
        ],
        set=_PIXEL,
        read=(_BOXES,),
    ),
    Shape(
        group="Gold answers",
        name="a box with its corners swapped",
        example='`{"answer": [150, 84, 30, 16.8]}`',
        rows=[{"image": "a.png", "prompt": "Where is the dog?", "answer": [150, 84, 30, 16.8]}],
        set=_PIXEL,
        refused="the corner with the smaller numbers comes first",
    ),
    Shape(
        group="Gold answers",
        name="a choice as letter and text; a byte order mark",
        example='`{"options": ["cat", "dog"], "answer": "B. dog"}`',
        rows=b"\xef\xbb\xbf" + json.dumps({"image": "a.png", "prompt": "Which?", "options": ["cat", "dog"], "answer": "B. dog"}).encode(),
        read=(("Which?\nA. cat\nB. dog", "B", ("a.png",)),),
    ),
    Shape(
        group="Parquet",
        name="R1-V: picture bytes, `problem`, `solution`",
        example='`{"image": {"bytes": ...}, "problem": ..., "solution": "<answer>3</answer>"}`',
        file="rows.parquet",
        rows=[{"image": "PNG", "problem": "How many?", "solution": "<answer> 3 </answer>"}],
        set={"answer_type": "number"},
        refused="image_bytes: 'image' holds bytes; set 'media_folder' of the source to the folder to write them to",
    ),
    Shape(
        group="Parquet",
        name="the same with a folder for the pictures",
        example="the same",
        file="rows.parquet",
        rows=[{"image": "PNG", "problem": "How many?", "solution": "<answer> 3 </answer>"}],
        set={"answer_type": "number", "media_folder": "pictures"},
        read=(("How many?", "3", ("pictures/*.png",)),),
    ),
    Shape(
        group="Parquet",
        name="verl: picture bytes",
        example='`{"prompt": [...], "images": [{"bytes": ...}], "reward_model": {"ground_truth": "48"}}`',
        file="rows.parquet",
        rows=[
            {
                "data_source": "geo3k",
                "prompt": chat("<image>Find x."),
                "images": ["PNG"],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": "48"},
            }
        ],
        set={"media_folder": "pictures"},
        read=(("Find x.", "48", ("pictures/*.png",)),),
    ),
    Shape(
        group="Parquet",
        name="`<image>` within the text",
        example='`"In <image>, find x."`',
        rows=[
            {
                "prompt": chat("In <image>, find x."),
                "images": ["a.png"],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": "48"},
            }
        ],
        refused="placeholder: 'prompt' has <image> within its text; placeholders stand together at its start (media first) or at its end",
    ),
)
_TSV = "index\timage\tquestion\thint\tA\tB\tC\tD\tanswer\tcategory\n7\ta.png\tWhich is it?\t\tcat\tdog\t\t\tB\tanimals\n"
_QA = {"question": "What is it?", "answer": "A dog", "img": "a.png", "uid": 7}
_QA_COLUMNS = {"prompt": "question", "answer": "answer", "images": "img", "id": "uid"}
_ALPACA = {"instruction": "What is it?", "input": "Look closely.", "output": "A dog", "image": "a.png"}
_CAPTIONS = {"video_id": "x", "video_path": "v.mp4", "captions": [{"idx": "0", "content": "A dog runs."}]}
_DPO = {
    "conversations": human("<image>What is it?"),
    "chosen": {"from": "gpt", "value": "A dog"},
    "rejected": {"from": "gpt", "value": "A cat"},
    "images": ["a.png"],
}
_FRAMES = ["f/1.jpg", "f/2.jpg"]
_DATA_URI = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
COLUMNS = (
    Shape(
        group="Videos as frames",
        name="Qwen-VL: a list of pictures with its rate",
        example='`{"type": "video", "video": ["f/1.jpg", "f/2.jpg"], "sample_fps": 2}`',
        rows=[
            {
                "messages": chat(
                    [{"type": "video", "video": _FRAMES, "sample_fps": 2}, {"type": "text", "text": "What happens?"}], "A dog runs."
                )
            }
        ],
        set=OPEN,
        read=(("What happens?", "A dog runs.", ("f/1.jpg",)),),
    ),
    Shape(
        group="Videos as frames",
        name="ms-swift: lists of pictures without times",
        example='`{"messages": [...], "videos": [["f/1.jpg", "f/2.jpg"]]}`',
        rows=[{"messages": chat("<video>What happens?", "A dog runs."), "videos": [_FRAMES]}],
        set=OPEN,
        refused="nothing says when each is shown; give 'fps' or 'times' with it, or 'frames_fps' of the source",
    ),
    Shape(
        group="Videos as frames",
        name="the same with a rate",
        example="the same",
        rows=[{"messages": chat("<video>What happens?", "A dog runs."), "videos": [_FRAMES]}],
        set={**OPEN, "frames_fps": 2.0},
        read=(("What happens?", "A dog runs.", ("f/1.jpg",)),),
    ),
    Shape(
        group="Base64",
        name="a data URI or bare base64 for a path",
        example='`{"prompt": ..., "answer": ..., "image": "data:image/png;base64,..."}`',
        rows=[{"prompt": "What is it?", "answer": "A dog", "image": _DATA_URI}],
        set=OPEN,
        refused="image_bytes: 'image' holds base64; set 'media_folder' of the source to the folder to write it to",
    ),
    Shape(
        group="Base64",
        name="the same with a folder for the pictures",
        example="the same",
        rows=[{"prompt": "What is it?", "answer": "A dog", "image": _DATA_URI}],
        set={**OPEN, "media_folder": "pictures"},
        read=(("What is it?", "A dog", ("pictures/*.png",)),),
    ),
    Shape(
        group="Other columns",
        name="`question`, `answer`",
        example='`{"question": ..., "answer": ..., "img": "a.png", "uid": 7}`',
        rows=[_QA],
        set=OPEN,
        refused="map the keys with 'columns' of the source, like columns: {prompt: question, answer: answer, images: img, id: uid}",
    ),
    Shape(
        group="Other columns", name="the same, mapped", example="the same", rows=[_QA], set={**OPEN, "columns": _QA_COLUMNS}, read=(DOG,)
    ),
    Shape(
        group="Other columns",
        name="`query`, `response`",
        example='`{"query": ..., "response": ..., "images": ["a.png"]}`',
        rows=[{"query": "<image>What is it?", "response": "A dog", "images": ["a.png"]}],
        set={**OPEN, "columns": {"prompt": "query", "answer": "response", "images": "images"}},
        read=(DOG,),
    ),
    Shape(
        group="Other columns",
        name="alpaca",
        example='`{"instruction": ..., "input": ..., "output": ...}`',
        rows=[_ALPACA],
        set={**OPEN, "columns": {"prompt": ["instruction", "input"], "answer": "output", "images": "image"}},
        read=(("What is it?\nLook closely.", "A dog", ("a.png",)),),
    ),
    Shape(
        group="Other columns",
        name="a column that is not there",
        example="a wrong name in `columns`",
        rows=[_QA],
        set={**OPEN, "columns": {"prompt": "question", "answer": "answers"}},
        refused="columns: no row has the column 'answers' (mapped to 'answer'); did you mean 'answer'?",
    ),
    Shape(
        group="Other columns",
        name="TSV of VLMEvalKit",
        example="`index image question A B C D answer category`",
        file="rows.tsv",
        rows=_TSV,
        set={
            "columns": {
                "prompt": ["question", "hint"],
                "answer": "answer",
                "images": "image",
                "options": ["A", "B", "C", "D"],
                "id": "index",
                "meta.kind": "category",
            }
        },
        read=(("Which is it?\nA. cat\nB. dog", "B", ("a.png",)),),
    ),
    Shape(
        group="Other columns",
        name="CSV",
        example="`file,text,label`",
        file="rows.csv",
        rows='file,text,label\na.png,"What\nis it?",A dog\n',
        set={**OPEN, "columns": {"prompt": "text", "answer": "label", "images": "file"}},
        read=(("What\nis it?", "A dog", ("a.png",)),),
    ),
    Shape(
        group="Other columns",
        name="captions (ShareGPT4Video)",
        example='`{"video_path": "v.mp4", "captions": [{"content": ...}]}`',
        rows=[_CAPTIONS],
        set=OPEN,
        refused='like columns: {prompt: "=Describe the video.", answer: captions.0.content, videos: video_path}',
    ),
    Shape(
        group="Other columns",
        name="the same, mapped",
        example="the same",
        rows=[_CAPTIONS],
        set={**OPEN, "columns": {"prompt": "=Describe the video.", "answer": "captions.0.content", "videos": "video_path"}},
        read=(("Describe the video.", "A dog runs.", ("v.mp4",)),),
    ),
    Shape(
        group="Other columns",
        name="pairs (DPO)",
        example='`{"conversations": ..., "chosen": ..., "rejected": ...}`',
        rows=[_DPO],
        set=OPEN,
        refused=(
            "preference: pairs of a chosen and a rejected answer (DPO) are not trained on; to take the chosen one "
            "as gold answer set 'columns: {messages: conversations, answer: chosen.value}'"
        ),
    ),
    Shape(
        group="Other columns",
        name="the same, mapped",
        example="the same",
        rows=[_DPO],
        set={**OPEN, "columns": {"messages": "conversations", "answer": "chosen.value", "images": "images"}},
        read=(DOG,),
    ),
    Shape(
        group="Other files",
        name="open-r1-multimodal's list",
        example="`datasets: [{json_path: a.json, sampling_strategy: random:500}]`",
        file="mix.yaml",
        rows="datasets:\n  - json_path: a.json\n    sampling_strategy: random:500\n",
        refused=(
            "a list of data sets (open-r1-multimodal); give each json_path as 'path' of a source of its own "
            "(a.json); 'sampling_strategy: random:500' is '#500' behind the path"
        ),
    ),
    Shape(
        group="Other files",
        name="COCO",
        example='`{"images": [...], "annotations": [...]}`',
        file="instances.json",
        rows='{"images": [{"id": 1}], "annotations": [{"bbox": [1, 2, 3, 4]}], "categories": []}',
        refused="annotations of COCO, which ask nothing; write one row per question into a .jsonl",
    ),
    Shape(
        group="Other files",
        name="WebDataset",
        example="`shard-000.tar`",
        file="shard-000.tar",
        rows=b"\0" * 1024,
        refused="is an archive (WebDataset keeps the parts of a sample as files of one name); unpack it (tar -xf) below media_root",
    ),
)
SHAPES: tuple[Shape, ...] = (*CHATS, *GOLD, *COLUMNS)


def table() -> str:
    """The table as Markdown: what each shape became, not what it should become."""
    out = ["| shape | example | set | result |", "|---|---|---|---|"]
    for shape in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            found = outcome(shape, Path(folder))
            error = _message(found.error, folder)
        said = ", ".join(f"{key}: {_yaml(value)}" for key, value in shape.set.items())
        result = f"error: {error}" if found.error else _result(found.samples)
        cells = (f"{shape.group}: {shape.name}", shape.example, f"`{said}`" if said else "", result)
        out.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(out)


def _result(samples: Sequence[Sample]) -> str:
    one = samples[0]
    facts = [f"{len(samples)} rows" if len(samples) > 1 else "read", f"`{one.answer_type}`"]
    if len(samples) > 1:
        facts.append("ids end in " + ", ".join(f"`{sample.id[sample.id.index('#') :]}`" for sample in samples))
    history = sum(len(sample.history) for sample in samples)
    if history:
        facts.append(f"{history} earlier turn as context")
    return ", ".join(facts)


def _message(text: str, folder: str) -> str:
    """The reason and the first row's message, without what differs from machine to machine."""
    found = re.search(r"\n  \S+?:\d+: (.+)", text)
    line = found.group(1) if found else text.splitlines()[0] if text else ""
    line = line.replace(f"{folder}/", "").replace(folder, ".")
    line = re.sub(r"(known are vlmrl, tasks)[^(]*", r"\1, ... ", line)  # a plug-in that another test imported may add one
    shown = re.sub(r"(like )(columns: \{.*\})", r"\1`\2`", line.replace("<", "&lt;"))
    return shown.replace("*", "\\*")


def _yaml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(value) + "]"
    return f'"{value}"' if str(value).startswith("=") else str(value)


def main() -> None:
    """Write the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
