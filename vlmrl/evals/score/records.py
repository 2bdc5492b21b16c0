"""Records: one JSON line per answer with what was asked, what came back, its scores, and all that decides whether it can be used again.

A record is addressed by `Record.key`: weights, sample, prompt and generation settings. Nothing in it depends on the clock, so two
evaluations of the same weights give the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vlmrl import fs
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.errors import StorageError
from vlmrl.types import FinishReason, GenerationSettings, Prompt

HARNESS = "vlmrl"
REFERENCE = "hf"
"""The engine that others are held against (`rollout.engine: hf`). Records name only another one."""

Status = Literal["ok", "no_tag", "truncated", "unparsable"]
"""`ok`: an answer was found and read. `unparsable`: found, but not of the asked type. `truncated`: none, because the text stopped
by length or its thought never closed. `no_tag`: none, although the text ended by itself."""

RENAMED = {"stage": "model", "template": "answer_format"}
"""Fields that files of earlier versions have under another name; they can still be read."""
LATER = frozenset({"difficulty", "category", "group", "frame", "k", "seed", "task_version", "harness"})
"""Fields that files of earlier versions lack; they can still be read."""

Key = tuple[str, str, str, str, int, int | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Think:
    """The thought of one answer."""

    has: bool
    """Closed and not empty."""
    tokens: int | None
    """Length of its text when tokenised alone; 0 without a thought; None where nobody counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One answer to one sample, scored. What cannot be read counts as wrong; nothing leaves the denominator."""

    model: str
    """Its label: a stage of a run, or the name of a checkpoint."""
    sample_id: str
    task: str
    cluster: str
    """Path of the first medium: rows that share a video are not independent."""
    sample_hash: str
    """Of question, gold answer and processed media (content and pixel budget)."""
    prompt_ids_hash: str
    answer_format: str
    answer_type: str
    text: str
    """As generated."""
    answer: str | None
    """What stands between the answer tags; None if there is none."""
    status: Status
    format_ok: bool | None
    """Whether the whole text is what the answer format asks for; None for imported answers."""
    pred: tuple[float, ...] | None
    """The answer as numbers, None if it could not be read: (start, end) in seconds for `time_span`, corners one box after the other for
    `bbox`, the value for `number`; empty for answers that are no numbers."""
    gold: tuple[float, ...]
    scores: Mapping[str, float]
    """By names that depend on the answer type (`AnswerType.score`), each in [0, 1]; 0 where `pred` is None."""
    think: Think
    n_in: int | None
    """Tokens of the prompt, media included. None, as in the next two: an imported answer of which this is not known."""
    n_out: int | None
    """Tokens of the answer, end token included."""
    finish: FinishReason | None
    unclosed: bool
    """A thought was opened and never closed."""
    fingerprint: str
    """Of the weights."""
    settings: Mapping[str, float | str]
    """Of generation, and `engine` where another than the reference engine of this package answered."""
    difficulty: str | None = None
    """What the row says of it in `difficulty`."""
    category: str | None = None
    """What the row says of it in `category`."""
    group: str | None = None
    """What the row says in `question_group`: rows that count together (rotations of a question, pairs of pictures)."""
    frame: str | None = None
    """Coordinates of `pred` and `gold`, where the row states them: `types.CoordinateFrame`."""
    k: int = 0
    """Number of this answer among those to the sample."""
    seed: int | None = None
    """Of the evaluation that sampled it; None for greedy answers."""
    task_version: int = 1
    harness: str = HARNESS
    """Program that asked and scored, and its version where it is not this one."""

    @property
    def key(self) -> Key:
        """Give the address of the answer: equal keys mean the same answer, so it need not be generated again."""
        settings = json.dumps(dict(self.settings), sort_keys=True)
        return self.fingerprint, self.sample_hash, self.prompt_ids_hash, settings, self.k, self.seed

    def line(self) -> bytes:
        """Write the record as one line of JSON, newline included, ASCII only."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, allow_nan=False).encode() + b"\n"


def from_json(row: Mapping[str, Any]) -> Record:
    """Read the record of a parsed line.

    Raises:
        KeyError, TypeError: a field is missing, unknown or of another shape.
    """
    if renamed := RENAMED.keys() & row.keys():
        twice = sorted(old for old in renamed if RENAMED[old] in row)
        if twice:
            raise TypeError(f"field '{twice[0]}' is the earlier name of '{RENAMED[twice[0]]}', which is there as well")
        row = {RENAMED.get(name, name): value for name, value in row.items()}
    if row.keys() != Record.__dataclass_fields__.keys():
        unknown = sorted(set(row) - Record.__dataclass_fields__.keys())
        if unknown:
            raise TypeError(f"unknown field '{unknown[0]}'")
        missing = sorted(Record.__dataclass_fields__.keys() - set(row) - LATER)
        if missing:
            raise KeyError(missing[0])
    pred = None if row["pred"] is None else tuple(float(v) for v in row["pred"])
    return Record(**{**row, "pred": pred, "gold": tuple(map(float, row["gold"])), "think": Think(**row["think"])})


def settings_json(settings: GenerationSettings, engine: str = REFERENCE) -> dict[str, float | str]:
    """Write generation settings as they stand in a record; 0 and 0.0 are the same temperature. The reference engine is not named.

    Returns:
        JSON values; two that are equal stand for the same generation.
    """
    return {
        "max_new_tokens": int(settings.max_new_tokens),
        "temperature": float(settings.temperature),
        "top_p": float(settings.top_p),
        **({} if engine == REFERENCE else {"engine": engine}),
    }


def sample_hash(prompt: Prompt) -> str:
    """Hash question, gold answer and processed media of a prompt; equal for two models that see the same pixels.

    Returns:
        32 hexadecimal digits.
    """
    sample = prompt.sample
    parts = {
        "id": sample.id,
        "question": sample.question,
        "answer_type": sample.answer_type,
        "gt": {key: sample.gt[key] for key in sorted(sample.gt)},
        "media": [[handle.kind, handle.key] for handle in prompt.media],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=list).encode()).hexdigest()[:32]


def prompt_ids_hash(prompt: Prompt) -> str:
    """Hash the token ids and the place of the media among them."""
    text = json.dumps([list(prompt.ids), [list(span) for span in prompt.spans]])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def prompt_keys(
    prompt: Prompt, settings: GenerationSettings, fingerprint: str, *, samples: int = 1, seed: int = 0, engine: str = REFERENCE
) -> list[Key]:
    """List `Record.key` of the records that this prompt will get, one per answer.

    Returns:
        One key per answer, in the order of `k`.
    """
    where = fingerprint, sample_hash(prompt), prompt_ids_hash(prompt), json.dumps(settings_json(settings, engine), sort_keys=True)
    return [(*where, k, seed if settings.temperature > 0 else None) for k in range(samples)]


def by_sample(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Group records: sample id -> its answers in the order of `k`; samples in the order of their ids."""
    out: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda r: (r.sample_id, r.k)):
        out.setdefault(record.sample_id, []).append(record)
    return out


def read_records(path: Path) -> list[Record]:
    """Read the records of a file, in its order. A last line that is not whole was being written when the process died; it is left out.

    Raises:
        StorageError: the file is missing, another line is damaged or of an unknown answer type, or two lines have the same answer to
            the same sample.
    """
    if not path.is_file():
        raise StorageError(f"{path}: no evaluation records; run the evaluation first")
    # a file of whole lines leaves an empty tail; anything else in it is the line that was being written
    *lines, tail = path.read_bytes().split(b"\n")
    out: list[Record] = []
    seen: dict[tuple[str, int], int] = {}
    for number, line in enumerate(lines, start=1):
        try:
            record = from_json(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) and not tail:
                break
            raise StorageError(f"{path}:{number}: not an evaluation record ({error!r}); remove the line to have it made again") from error
        problem = ANSWER_TYPES.problem(record.answer_type) if record.harness == HARNESS else None
        if problem is not None:
            raise StorageError(f"{path}:{number}: {problem}; if a plug-in defines it, name its module: --plugin MODULE")
        place = record.sample_id, record.k
        if place in seen:
            which = f"answer {record.k} to sample '{record.sample_id}'"
            raise StorageError(f"{path}:{number}: the {which} is already at line {seen[place]}; remove one of the two lines")
        seen[place] = number
        out.append(record)
    return out


def read_verified(path: Path) -> list[Record]:
    """Read a file that is finished, after its content was compared with the hash that is kept of it: by a run in its
    `identity.json`, by `vlmrl eval` in `summary.json`. Without any it is read as it is.

    Raises:
        StorageError: as `read_records`, or the content is not what was written.
    """
    for keeper, advice in ((_of_run, "run the same `vlmrl train` again"), (_of_evaluation, "run the evaluation again")):
        known = keeper(path)
        if known is not None and path.is_file() and sha256(path.read_bytes()) != known:
            raise StorageError(f"{path}: content is not what was written (its sha256 differs); {advice}, or restore the file")
    return read_records(path)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _of_run(path: Path) -> str | None:
    """What a run directory keeps of a file in its `eval`."""
    folder = next((parent for parent in path.parents if parent.name == "eval"), None)
    kept = None if folder is None else _json(folder.parent / "identity.json")
    if kept is None or folder is None:
        return None
    name = path.relative_to(folder.parent).as_posix()
    return next((content for file, _, content in kept["records"] if file == name), None)


def _of_evaluation(path: Path) -> str | None:
    """What the folder of an evaluation keeps of a file in it."""
    kept = _json(path.parent / "summary.json")
    return None if kept is None else kept.get("files", {}).get(path.name)  # summaries of earlier versions have no hashes


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise StorageError(f"{path}: not JSON: {error}; run the same command again") from error
    if not isinstance(value, dict):
        raise StorageError(f"{path}: not a JSON object; run the same command again")
    return value


class RecordStore:
    """The records file of one evaluation. Opening it keeps what `keep` wants and makes the file hold exactly that.

    Records of other weights, prompts or settings are moved to `<name>.superseded` and not deleted: generating them cost something.
    """

    def __init__(self, path: Path):
        self.path = path
        fs.mkdir(path.parent)
        self.found: dict[Key, Record] = {record.key: record for record in read_records(path)} if path.exists() else {}

    def keep(self, wanted: Iterable[Key], kept: Sequence[Record]) -> None:
        """Make the file hold `kept`: found records, perhaps scored anew. Found ones that are not in `wanted` are superseded; the rest
        of those in `wanted` will be made again."""
        ours = set(wanted)
        # written before the file is replaced: a crash in between leaves answers twice, never nowhere
        superseded = b"".join(record.line() for key, record in self.found.items() if key not in ours)
        if superseded:
            fs.append(self.path.with_name(self.path.name + ".superseded"), superseded)
        self._hold(kept)

    def _hold(self, records: Sequence[Record]) -> None:
        content = b"".join(record.line() for record in records)
        # an evaluation that finds everything done changes no file
        if not self.path.exists() or self.path.read_bytes() != content:
            fs.write_bytes(self.path, content)

    def append(self, records: Iterable[Record]) -> None:
        """Add finished records with one write, whole or not at all."""
        fs.append(self.path, b"".join(record.line() for record in records))

    def finish(self, records: Sequence[Record]) -> None:
        """Make everything durable, in the order of `records`, which are all that the file holds."""
        self._hold(records)
        fs.sync(self.path)
        fs.fsync_dir(self.path.parent)
