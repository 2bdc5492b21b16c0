"""Parses rows of the published schema: one JSON object to one `Sample`, or a `RowError` that names the key at fault.

    {"id": "clip-7", "task": "temporal_grounding", "answer_type": "time_span", "video": "clips/7.mp4",
     "prompt": "When does the door open?", "gt": {"time": [3.0, 5.5]}}

Required: `id`, `task`, `answer_type`, `prompt`; `answer`, except where the answer type can write it from `gt`. What a type wants in
`gt` is said in its file in `vlmrl.answers`.
Media: `image` or `images`, `video` or `videos`; each a path relative to the media root, or `{"path": ..., "sha256": ...}`. A video may
be its frames: `{"frames": ["1.jpg", "2.jpg"], "times": [0, 0.5]}`, or `{"frames": "folder", "fps": 2}`.
`<image>` and `<video>` may stand at the start of the prompt, one per medium, and then give their order. `history` holds earlier turns
of the conversation, each `{"prompt": ..., "answer": ...}` with its own placeholders; without any the media stand in the first turn.
Everything is data: control tokens of chat templates in any text are refused, and so are tags of the answer format in an answer or a
thought. `null` is the same as leaving a key out.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from vlmrl.answers.base import ANSWER_TYPES, AnswerType
from vlmrl.data.embedded import is_embedded
from vlmrl.errors import MediaError, RowError
from vlmrl.media.access import check_path
from vlmrl.registry import nearest
from vlmrl.types import MediaKind, MediaRef, Sample, Turn

DATA_TYPES = ("image", "multi_image", "video", "gui", "text")
_REQUIRED = ("id", "task", "answer_type", "prompt")
_MEDIA_KEYS = ("image", "images", "video", "videos")
_KEPT = ("data_type", "options", "source", "trajectory", "difficulty")
"""Optional keys that go into `Sample.meta` under their own name."""
KEYS = (*_REQUIRED, *_MEDIA_KEYS, *_KEPT, "answer", "gt", "thought", "history", "meta")

MAX_DEPTH = 64
MAX_FPS = 500
"""Most frames per second of a video that is given as pictures: a frame that starts within a millisecond after a moment counts as shown
at it (`media.video.TICK`)."""
LARGEST = 2**53
"""Integers beyond this are not exact as floats and are never meant."""

_CONTROL = re.compile(r"<\|[A-Za-z0-9_\-]{1,64}\|>|<(?:image|video)>")
_PLACEHOLDERS = re.compile(r"\s*<(image|video)>")
_LAST_PLACEHOLDER = re.compile(r"<(image|video)>\Z")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_FORM = re.compile(r"</?(?:think|thinking|answer)>", re.IGNORECASE)
"""The tags of the answer formats (`answers.tags`); in a gold answer or a thought they would teach a broken form, or another answer."""
MESSAGES_TEXT = re.compile(r"\s*\[\s*\{\s*\"(?:role|from|content|value)\"\s*:")
"""How JSON text of a list of messages begins."""
MIXED = "mixed_shapes"
"""Reason of a row whose shape is not that of its file; loading a source stops at one."""
MAX_ID = 256
"""Characters of the longest id: it is repeated in journals, ledgers and logs."""
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"
"""Printable characters without any ink (fillers of Hangul, the empty Braille cell)."""


def parse_row(obj: object, *, source: str, media_root: str) -> Sample:
    """Check a row against the schema and make its sample. `source` is its `file:line`; `media_root` is passed on.

    Raises:
        RowError: `not_object`, `missing_key`, `unknown_key`, `bad_type`, `bad_value`, `not_finite`, `nesting`, `encoding`,
            `placeholder`, `control_token`, `form_tag` or `forbidden` (a media path).
    """
    if not isinstance(obj, dict):
        raise RowError("not_object", f"a row must be a JSON object, got {type(obj).__name__}")
    # first: all that follows may rely on plain, finite JSON values that can be printed in a message
    check_values(obj)
    # tables give every row every column: null says the same as no key
    row = {key: value for key, value in obj.items() if value is not None}
    # refused instead of ignored: a misspelt optional key would be lost without a word
    for key in row:
        if key not in KEYS:
            raise RowError("unknown_key", f"'{key}'{nearest(key, KEYS)} (extra data belongs in 'meta')")
    for key in _REQUIRED:
        _text(row, key)
    check_id(row["id"])
    if MESSAGES_TEXT.match(row["prompt"]):
        raise RowError(
            "bad_type", "'prompt' is a list of messages as JSON text; write its question as text (rows of other trainers are read)"
        )
    kind = _answer_type(row)
    question, kinds, question_first = _split_placeholders(row["prompt"], "prompt")
    media = _media(row)
    history, earlier = _history(row, len(media), kinds) if "history" in row else ((), [])
    media = _ordered(media, earlier + kinds)
    _check_data_type(row, media)
    # before control tokens are looked for, so that options are searched as well
    question = _with_options(question, _options(row))
    if not visible(question):
        raise RowError("bad_value", "'prompt' has no visible text besides placeholders")
    gt = _ground_truth(_mapping(row, "gt"), kind)
    answer = _text(row, "answer") if "answer" in row else _built_answer(kind, gt)
    thought = row.get("thought")
    if thought is not None and not isinstance(thought, str):
        raise RowError("bad_type", f"'thought' must be text, got {type(thought).__name__}")
    # placeholders were taken out above: any that is left stands where it would be read as a medium that is not there
    told = [(f"history[{i}]", text) for i, turn in enumerate(history) for text in (turn.question, turn.answer)]
    for key, text in (("prompt", question), ("answer", answer), ("thought", thought or ""), *told):
        found = _CONTROL.search(text)
        if found:
            raise RowError("control_token", f"'{key}' contains {found.group()!r}, which the model would read as a control token; remove it")
    for key, text in (("answer", answer), ("thought", thought or "")):
        found = _FORM.search(text)
        if found:
            raise RowError("form_tag", f"'{key}' contains {found.group()!r}, a tag of the answer format; give the bare {key}, without tags")
    return Sample(
        id=row["id"],
        task=row["task"],
        answer_type=kind.name,
        question=question,
        media=media,
        answer=answer,
        gt=gt,
        thought=thought,
        question_first=question_first,
        history=history,
        source=source,
        media_root=media_root,
        meta=_meta(row),
    )


def check_values(obj: object) -> None:
    """Check that everything inside is a plain JSON value that can be stored and written again.

    Raises:
        RowError: `nesting`, `not_finite`, `encoding`, `bad_type` or `bad_value`, with the place inside the row.
    """
    waiting: list[tuple[str, object, int]] = [("", obj, 0)]
    while waiting:
        place, value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise RowError("nesting", f"{place[:100]}: more than {MAX_DEPTH} levels deep")
        if isinstance(value, dict):
            for key, inner in value.items():
                if not isinstance(key, str):
                    raise RowError("bad_type", f"{place}: key {key!r} is not text")
                _check_text(f"{place}.{key}"[:200], key)
                waiting.append((f"{place}.{key}".lstrip("."), inner, depth + 1))
        elif isinstance(value, list):
            waiting.extend((f"{place}[{i}]", inner, depth + 1) for i, inner in enumerate(value))
        elif isinstance(value, str):
            _check_text(place, value)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise RowError("not_finite", f"{place}: {value}")
        elif isinstance(value, int):
            if abs(value) > LARGEST:
                raise RowError("bad_value", f"{place}: an integer larger than 2**53")
        elif value is not None:
            raise RowError("bad_type", f"{place}: {type(value).__name__} is not a JSON value")


def _check_text(place: str, value: str) -> None:
    if "\0" in value:
        raise RowError("bad_value", f"{place!r} contains a NUL character")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise RowError("encoding", f"{place!r} contains half of a surrogate pair")


def visible(text: str) -> bool:
    """Check whether a text has a character that can be seen: not only white space, zero-width and control characters, or fillers."""
    return any(character.isprintable() and not character.isspace() and character not in _BLANK for character in text)


def check_id(name: str) -> None:
    """Check an id. Ids are keys and are printed everywhere: short, on one line, without control or format characters.

    Raises:
        RowError: `bad_value`.
    """
    if len(name) > MAX_ID:
        raise RowError("bad_value", f"'id' has {len(name)} characters, at most {MAX_ID} are taken; it begins {name[:40]!r}")
    if not name.isprintable():
        at = next(character for character in name if not character.isprintable())
        raise RowError("bad_value", f"'id' {name[:60]!r} contains {at!r}; an id is one line of printable characters")


def _text(row: Mapping[str, Any], key: str) -> str:
    if key not in row:
        raise RowError("missing_key", f"'{key}' is missing")
    value = row[key]
    if not isinstance(value, str):
        raise RowError("bad_type", f"'{key}' must be text, got {type(value).__name__} {str(value)[:60]}; write it in quotes")
    if not visible(value):
        raise RowError("bad_value", f"'{key}' is empty" if not value.strip() else f"'{key}' has no visible character: {value[:20]!r}")
    return value


def _one_of(row: Mapping[str, Any], key: str, known: tuple[str, ...]) -> str:
    value = _text(row, key)
    if value not in known:
        raise RowError("bad_value", f"'{key}' is {value[:60]!r}{nearest(value, known)} (known: {', '.join(known)})")
    return value


def _mapping(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = row.get(key, {})
    if not isinstance(value, dict):
        raise RowError("bad_type", f"'{key}' must be an object, got {type(value).__name__}")
    return value


def _split_placeholders(prompt: str, place: str) -> tuple[str, list[MediaKind], bool]:
    """(text without its placeholders, their kinds in order, whether they stand at its end and not at its start)."""
    first = _PLACEHOLDERS.match(prompt) is None
    text = prompt.strip()
    kinds: list[MediaKind] = []
    # at the end they are taken off from the last one on, hence the reversal below
    while found := (_LAST_PLACEHOLDER.search(text) if first else _PLACEHOLDERS.match(text)):
        kinds.append("image" if found.group(1) == "image" else "video")
        text = text[: found.start()].rstrip() if first else text[found.end() :]
    inside = re.search(r"<(?:image|video)>", text)
    if inside:
        where = "placeholders stand together at its start (media first) or at its end (question first)"
        raise RowError("placeholder", f"'{place}' has {inside.group()} within its text; {where}")
    return text.strip(), kinds[::-1] if first else kinds, first and bool(kinds)


def _history(row: Mapping[str, Any], media: int, asked: list[MediaKind]) -> tuple[tuple[Turn, ...], list[MediaKind]]:
    """(earlier turns, kinds of the placeholders in them). `asked` are those of the prompt; with none at all the first turn shows all."""
    turns = row["history"]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) and set(turn) == {"prompt", "answer"} for turn in turns):
        raise RowError("bad_type", "'history' must be a list of objects with 'prompt' and 'answer', the earlier turns in their order")
    out: list[Turn] = []
    kinds: list[MediaKind] = []
    for i, turn in enumerate(turns):
        named = {f"history[{i}].{key}": value for key, value in turn.items()}
        answer = _text(named, f"history[{i}].answer")
        question, own, last = _split_placeholders(_text(named, f"history[{i}].prompt"), f"history[{i}].prompt")
        if not visible(question) and not own:
            raise RowError("bad_value", f"'history[{i}].prompt' is empty")
        out.append(Turn(question=question, answer=answer, media=len(own), question_first=last))
        kinds += own
    if out and not kinds and not asked:
        out[0] = dataclasses.replace(out[0], media=media)
    return tuple(out), kinds


def _media(row: Mapping[str, Any]) -> list[MediaRef]:
    """Images, then videos, each in the order of the row."""
    out: list[MediaRef] = []
    kinds: tuple[tuple[MediaKind, str], ...] = (("image", "images"), ("video", "videos"))
    for kind, many in kinds:
        if kind in row and many in row:
            raise RowError("bad_value", f"'{kind}' and '{many}' are both given; use one of them")
        if many in row:
            if not isinstance(row[many], list):
                raise RowError("bad_type", f"'{many}' must be a list of paths, got {type(row[many]).__name__}")
            out += [_ref(item, kind, f"{many}[{i}]") for i, item in enumerate(row[many])]
        elif kind in row:
            out.append(_ref(row[kind], kind, kind))
    return out


def _ref(item: object, kind: MediaKind, place: str) -> MediaRef:
    if kind == "video" and isinstance(item, dict) and "frames" in item:
        return _frames(item, place)
    path, sha256 = item, None
    if isinstance(item, dict):
        unknown = sorted(set(item) - {"path", "sha256"})
        if unknown:
            raise RowError("unknown_key", f"'{place}.{unknown[0]}' (a medium is a path or an object with 'path' and 'sha256')")
        path, sha256 = item.get("path"), item.get("sha256")
    if kind == "video" and isinstance(path, list):
        form = '{"frames": [...], "times": [...]} or {"frames": [...], "fps": ...}'
        raise RowError("bad_type", f"'{place}' is a list; a video given as pictures is {form}")
    if not isinstance(path, str):
        raise RowError("bad_type", f"'{place}' must be a path, got {type(path).__name__}")
    if sha256 is not None and not (isinstance(sha256, str) and _SHA256.fullmatch(sha256)):
        raise RowError("bad_value", f"'{place}.sha256' must be 64 hexadecimal digits")
    _check_media_path(path, place)
    return MediaRef(kind=kind, path=path, sha256=sha256.lower() if sha256 else None)


def _check_media_path(path: str, place: str) -> None:
    if is_embedded(path):
        raise RowError("image_bytes", f"'{place}' holds base64; set 'media_folder' of the source to the folder to write it to")
    try:
        check_path(path)
    except MediaError as error:
        raise RowError(error.reason, f"'{place}': {str(error).removeprefix(error.reason + ': ')}") from error


def _frames(item: Mapping[str, Any], place: str) -> MediaRef:
    """A video given as a list of pictures, or as the folder that holds them."""
    unknown = sorted(set(item) - {"frames", "times", "fps"})
    if unknown:
        more = "; give 'sha256' with each frame" if unknown[0] == "sha256" else ""
        raise RowError("unknown_key", f"'{place}.{unknown[0]}' (a video given as pictures has 'frames' and 'times' or 'fps'){more}")
    frames, times, fps = item["frames"], item.get("times"), item.get("fps")
    # exactly one of the two: a default rate would shift every answer in seconds
    if (times is None) == (fps is None):
        how = "both given; use one of them" if times is not None else "missing; one of them says when each picture comes on screen"
        raise RowError("missing_key" if times is None else "bad_value", f"'{place}.times' and '{place}.fps' are {how}")
    if fps is not None and not (_is_number(fps) and 0 < fps <= MAX_FPS):
        raise RowError("bad_value", f"'{place}.fps' is {str(fps)[:60]}; it must be a number above 0, at most {MAX_FPS}")
    stamps = None if times is None else _times(times, place)
    rate = None if fps is None else float(fps)
    if isinstance(frames, str):
        _check_media_path(frames, f"{place}.frames")
        return MediaRef(kind="video", path=frames, times=stamps, fps=rate)
    if not isinstance(frames, list) or not frames:
        raise RowError("bad_type", f"'{place}.frames' must be a folder or a list of pictures that is not empty, got {str(frames)[:60]}")
    refs = tuple(_ref(frame, "image", f"{place}.frames[{i}]") for i, frame in enumerate(frames))
    if stamps is not None and len(stamps) != len(refs):
        raise RowError("bad_value", f"'{place}.times' has {len(stamps)} numbers for {len(refs)} frames")
    return MediaRef(kind="video", path=refs[0].path, frames=refs, times=stamps, fps=rate)


def _times(times: object, place: str) -> tuple[float, ...]:
    """Seconds from the first frame.

    Other clocks are not shifted to it in silence: gold answers in seconds would stay behind."""
    if not isinstance(times, list) or not times or not all(_is_number(time) for time in times):
        raise RowError("bad_type", f"'{place}.times' must be a list of numbers, one for each frame, got {str(times)[:60]}")
    for i, (before, after) in enumerate(pairwise(times)):
        # the tolerance is for differences of floats: 0.018 - 0.016 is less than 1 / 500
        if after - before < (1 - 1e-6) / MAX_FPS:
            how = f"not at least {1 / MAX_FPS:g} s after {before}; frames stand in the order of their times"
            raise RowError("bad_value", f"'{place}.times[{i + 1}]' is {after}, {how}")
    if times[0] != 0:
        how = f"subtract {times[0]} from all of them, and from what the row's answer says in seconds"
        raise RowError("bad_value", f"'{place}.times' starts at {times[0]}; times are seconds from the first frame: {how}")
    return tuple(float(time) for time in times)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _ordered(media: list[MediaRef], kinds: list[MediaKind]) -> tuple[MediaRef, ...]:
    """The media in the order of the placeholders, where there are any."""
    if not kinds:
        return tuple(media)
    have = [ref.kind for ref in media]
    for kind in ("image", "video"):
        if kinds.count(kind) != have.count(kind):
            raise RowError("placeholder", f"'prompt' has {kinds.count(kind)} <{kind}> but the row has {have.count(kind)} {kind}(s)")
    # each placeholder takes the next medium of its kind; the order within a kind is the row's
    queues = {kind: iter([ref for ref in media if ref.kind == kind]) for kind in set(kinds)}
    return tuple(next(queues[kind]) for kind in kinds)


def _check_data_type(row: Mapping[str, Any], media: tuple[MediaRef, ...]) -> None:
    if "data_type" not in row:
        return
    kind = _one_of(row, "data_type", DATA_TYPES)
    images = sum(ref.kind == "image" for ref in media)
    videos = len(media) - images
    fits = {
        "text": not media,
        "image": images == 1 and not videos,
        "multi_image": images > 1 and not videos,
        "gui": images > 0 and not videos,
        "video": videos > 0,
    }[kind]
    if not fits:
        raise RowError("bad_value", f"'data_type' is '{kind}' but the row has {images} image(s) and {videos} video(s)")


def _options(row: Mapping[str, Any]) -> list[str]:
    options = row.get("options", [])
    if not isinstance(options, list) or not all(isinstance(option, str) and option.strip() for option in options):
        raise RowError("bad_type", "'options' must be a list of texts, none of them empty")
    return options


def _with_options(question: str, options: list[str]) -> str:
    """The question with its options below it, unless it already shows all of them."""
    if not question or all(option.strip() in question for option in options):
        return question
    return "\n".join([question, *(option.strip() for option in options)])


def _answer_type(row: Mapping[str, Any]) -> AnswerType:
    name = _text(row, "answer_type")
    problem = ANSWER_TYPES.problem(name)
    if problem is not None:
        raise RowError("bad_value", f"'answer_type': {problem}")
    return ANSWER_TYPES[name]


def _ground_truth(gt: dict[str, Any], kind: AnswerType) -> dict[str, Any]:
    # ground truth of another answer type: the row's `answer_type` is probably wrong, and the key would be ignored
    for other in ANSWER_TYPES.values():
        foreign = [key for key in other.reserved if gt.get(key) is not None and key not in kind.reserved]
        if foreign:
            raise RowError("bad_value", f"'gt.{foreign[0]}' is given but 'answer_type' is '{kind.name}', not '{other.name}'")
    return kind.check(gt)


def _built_answer(kind: AnswerType, gt: Mapping[str, Any]) -> str:
    built = kind.write(gt)
    if built is None:
        raise RowError("missing_key", f"'answer' is missing, and rows of type '{kind.name}' need one, unless 'gt' determines it")
    return built


def _meta(row: Mapping[str, Any]) -> dict[str, Any]:
    # a frame of null is no frame; other nulls in `meta` are the user's own data and stay
    meta = {key: value for key, value in _mapping(row, "meta").items() if key != "frame" or value is not None}
    if "frame" in meta:
        from vlmrl.answers.frame import frame_problem

        problem = frame_problem(meta["frame"])
        if problem is not None:
            raise RowError("bad_value", problem)
    for key in _KEPT:
        if key in row:
            if key in meta and meta[key] != row[key]:
                raise RowError("bad_value", f"'{key}' and 'meta.{key}' disagree; give one of them")
            meta[key] = row[key]
    return meta
