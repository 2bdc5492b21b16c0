"""Reads sample files of lmms-eval 0.7 (`<date>_samples_<task>.jsonl`, one line per document) as records.

What the format hides: `resps` is left out when it equals `filtered_resps`; a single request is not wrapped in a list; `doc_hash` is the
same on every line, so documents are told apart by `doc_id`; lines of several processes are interleaved; a second run of the same second
appends to the file; token counts and metrics of repeated answers are those of the first. The document, the media and the generation
settings are not in it; the settings are in `<date>_results.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vlmrl.errors import DataError
from vlmrl.evals.score.paired import UNKNOWN
from vlmrl.extras.bridge.importers.common import Answer, Imported, Origin, joined, number_of
from vlmrl.types import Sample

NAME = re.compile(r"(?P<date>.+?)_samples_(?P<task>.+)\.jsonl")
"""Of a samples file."""
NO_METRIC = frozenset(
    {"doc_id", "doc", "doc_hash", "target", "arguments", "input", "input_media", "resps", "filtered_resps", "token_counts", "filter"}
)
"""Keys of a line that are no scores."""


def import_lmms_samples(
    path: Path,
    *,
    task: str | None = None,
    model: str | None = None,
    answer_format: str | None = None,
    version: str | None = None,
    samples: Mapping[str, Sample] | None = None,
) -> Imported:
    """Records of a samples file, ordered by document.

    Args:
        task: name of the task; by default that in the file's name.
        model: label of the model; by default that of the results file, else the folder's name.
        answer_format: answer format that the prompt asked for, if one was.
        version: of lmms-eval; by default that of the results file.
        samples: rows by `str(doc_id)`, to score the answers as ours are.

    Raises:
        DataError: not such a file, a document twice, answers that are no texts, or documents without a row.
    """
    named = NAME.fullmatch(path.name)
    if task is None and named is None:
        raise DataError(f"{path}: not named <date>_samples_<task>.jsonl, so the task is unknown; give its name")
    upstream_task = named["task"] if named else str(task)
    results = _results(path.with_name(f"{named['date']}_results.json")) if named else None
    config = _section(_section(results, "configs"), upstream_task)
    kind = config.get("output_type")
    if kind is not None and not str(kind).startswith("generate_until"):
        raise DataError(f"{path}: the task asks for {kind}, not for text; only answers that were generated can be read")
    found = version or _stated_version(results)
    origin = Origin(
        where=str(path),
        task=task or upstream_task,
        model=model or _model(results) or path.absolute().parent.name,
        harness=f"lmms-eval {found}" if found else f"{UNKNOWN} version of lmms-eval",
        settings=settings_of(_section(config, "generation_kwargs")),
        task_version=_version(_section(results, "versions").get(upstream_task)),
        answer_format=answer_format,
    )
    lines = _lines(path)
    strange: dict[str, int] = {}
    answers = [answer for number, line in lines for answer in _answers(line, f"{path}:{number}", strange)]
    notes = [f"{path}: '{name}' is no number on {count} of {len(lines)} lines and is left out there" for name, count in strange.items()]
    return Imported(records=joined(answers, origin, samples), notes=tuple(notes))


def _lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """(line number, object) by document."""
    found: dict[int | str, tuple[int, dict[str, Any]]] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}:{number}: not JSON ({error}); the file is damaged, write the samples again") from error
        doc = row.get("doc_id") if isinstance(row, dict) else None
        if isinstance(doc, bool) or not isinstance(doc, (int, str)) or "filtered_resps" not in row:
            raise DataError(f"{path}:{number}: no doc_id and filtered_resps; this is not a samples file of lmms-eval")
        if doc in found:
            raise DataError(
                f"{path}:{number}: document {doc} is already on line {found[doc][0]}; two runs or two filters share the file, part them"
            )
        found[doc] = number, row
    return [found[doc] for doc in sorted(found, key=lambda doc: (isinstance(doc, str), doc))]


def _answers(line: Mapping[str, Any], where: str, strange: dict[str, int]) -> Iterator[Answer]:
    """The answers of one document. Its scores stand on the first: they are of all of them, or of the first alone."""
    texts = list(_texts(line.get("resps", line["filtered_resps"]), where))
    if not texts:
        raise DataError(f"{where}: no answer in it")
    counts: Any = line.get("token_counts") or []
    upstream: dict[str, float] = {}
    for name in sorted(set(line) - NO_METRIC):
        value = line[name]
        number = number_of(value.get("score")) if isinstance(value, dict) else None if isinstance(value, str) else number_of(value)
        if number is None:
            strange[name] = strange.get(name, 0) + 1
        else:
            upstream[name] = number
    shown: Any = line.get("input")
    for k, text in enumerate(texts):
        known = counts[k] if isinstance(counts, list) and k < len(counts) and isinstance(counts[k], dict) else {}
        yield Answer(
            sample_id=str(line["doc_id"]),
            text=text,
            k=k,
            upstream=upstream if k == 0 else {},
            prompt=None if shown is None else shown if isinstance(shown, str) else json.dumps(shown, sort_keys=True),
            target=None if line.get("target") is None else str(line["target"]),
            n_in=_count(known.get("input_tokens")),
            n_out=_count(known.get("output_tokens")),
        )


def _texts(value: Any, where: str) -> Iterator[str]:
    """All texts in nested lists, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        if len(value) == 2 and isinstance(value[1], str) and value[1] in ("True", "False") and number_of(value[0]) is not None:
            raise DataError(f"{where}: a log-likelihood and not a text; only answers that were generated can be read")
        for inner in value:
            yield from _texts(inner, where)
    else:
        raise DataError(f"{where}: an answer is {type(value).__name__}, not text; only answers that were generated can be read")


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def settings_of(arguments: Mapping[str, Any]) -> dict[str, float]:
    """Generation settings as they stand in our records; empty unless length, temperature and (when sampling) top-p are all stated."""
    length = number_of(arguments.get("max_new_tokens"))
    greedy = arguments.get("do_sample") is False or number_of(arguments.get("temperature")) == 0
    temperature = 0.0 if greedy else number_of(arguments.get("temperature"))
    top_p = 1.0 if greedy else number_of(arguments.get("top_p"))
    if length is None or temperature is None or top_p is None:
        return {}
    return {"max_new_tokens": int(length), "temperature": temperature, "top_p": top_p}


def _results(path: Path) -> dict[str, Any] | None:
    """The results file of the same run, if it is there."""
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); remove it to import without the settings that it holds") from error
    return value if isinstance(value, dict) else None


def _section(value: Mapping[str, Any] | None, key: str) -> dict[str, Any]:
    inner = (value or {}).get(key)
    return inner if isinstance(inner, dict) else {}


def _model(results: dict[str, Any] | None) -> str | None:
    """Name and arguments of the model, as it was called."""
    config = _section(results, "config")
    name, arguments = ((results or {}).get("model_name") or config.get("model")), config.get("model_args")
    return None if not name else f"{name} ({arguments})" if arguments else str(name)


def _stated_version(results: Mapping[str, Any] | None) -> str | None:
    """What a results file says of lmms-eval's version. In a git checkout it says branch and commit of whatever the working directory
    was, which tells nothing."""
    stated = str((results or {}).get("lmms_eval_version") or "")
    return stated if re.fullmatch(r"\d+(?:\.\d+)+\w*", stated) else None


def _version(value: object) -> int:
    number = number_of(value)
    return int(number) if number is not None and number >= 1 and number == int(number) else 0
