"""Files that come with data sets and are no list of rows: what each is, and how its rows are read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_READ = "rows are read from .jsonl, .json, .parquet, .arrow, .csv and .tsv"
_LARGEST = 50_000_000
"""Bytes of a JSON object that is looked into."""
_ENTRIES = 5
_YAML_PATH = re.compile(r"^[\s-]*json_path:\s*['\"]?([^'\"#\n]+?)['\"]?\s*$", re.MULTILINE)
_YAML_DRAW = re.compile(r"^\s*sampling_strategy:\s*['\"]?(\w+)(?::(\d+)(%?))?", re.MULTILINE)


def about_suffix(path: Path) -> str:
    """What to say of a file whose name does not end like one of rows."""
    kind = "".join(path.suffixes[-2:]) if path.suffix in (".gz", ".zst", ".xz", ".bz2") else path.suffix
    head = f"{path}: unknown kind of file '{path.suffix}'; {_READ}"
    if path.suffix in (".yaml", ".yml"):
        return f"{path}: is no file of rows{_list_of_sets(path)}; {_READ}"
    if kind.startswith(".tar") or path.suffix in (".tar", ".tgz"):
        how = "unpack it (tar -xf) below media_root and write one row per sample into a .jsonl, with the names of its media"
        return f"{path}: is an archive (WebDataset keeps the parts of a sample as files of one name); {how}; {_READ}"
    if path.suffix in (".gz", ".zst", ".xz", ".bz2", ".zip"):
        return f"{path}: is compressed; unpack it first; {_READ}"
    if path.suffix in (".xlsx", ".xls"):
        return f"{path}: is a spreadsheet; save it as .csv or .tsv and say what its columns are with 'columns' of the source; {_READ}"
    return head


def _list_of_sets(path: Path) -> str:
    """The entries of a list of data sets (open-r1-multimodal, VLM-R1), as sources."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(1 << 20)
    except OSError:
        return ""
    files, draws = _YAML_PATH.findall(text), _YAML_DRAW.findall(text)
    if not files:
        return ""
    shown = ", ".join(files[:_ENTRIES]) + (f" and {len(files) - _ENTRIES} more" if len(files) > _ENTRIES else "")
    draw = "; 'sampling_strategy: random:500' is '#500' behind the path" if draws else ""
    return f" but a list of data sets (open-r1-multimodal); give each json_path as 'path' of a source of its own ({shown}){draw}"


def about_object(path: Path, text: str) -> str:
    """What to say of a .json file that holds one object."""
    head = f"{path}: is not a list of rows (it begins with {text.lstrip()[:20]!r})"
    plain = f"{head}; one object per line belongs into .jsonl, a list of objects into .json"
    if not text.lstrip().startswith("{") or len(text) > _LARGEST:
        return plain
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return plain
    if not isinstance(found, Mapping):
        return plain
    keys = [str(key) for key in found]
    if {"images", "annotations"} <= set(keys):
        return (
            f"{head} but annotations of COCO, which ask nothing; write one row per question into a .jsonl: the file name of the picture as "
            "'image', a prompt like 'Where is the dog?', and its boxes [x, y, w, h] as 'answer', with 'columns', 'answer_type: bbox', "
            "'frame: pixel' and 'axis: xywh' of the source"
        )
    entries = [(str(name), entry) for name, entry in found.items() if isinstance(entry, Mapping)]
    metas = [(name, entry) for name, entry in entries if isinstance(entry.get("annotation"), str)]
    if metas and len(metas) == len(keys):
        shown = [f"{name} -> {{path: {entry['annotation']}, media_root: {entry.get('root', '.')}}}" for name, entry in metas[:_ENTRIES]]
        more = f" and {len(metas) - _ENTRIES} more" if len(metas) > _ENTRIES else ""
        return f"{head} but a list of data sets (meta file of InternVL); give each as a source of its own: {', '.join(shown)}{more}"
    lists = [key for key in keys if isinstance(found[key], list) and found[key] and isinstance(found[key][0], Mapping)]
    if lists:
        return f"{head}; its rows seem to be the list under {lists[0][:40]!r}: write that list alone into a .json file"
    if entries and len(entries) == len(keys):
        return f"{head}; its {len(keys)} rows stand under names like {keys[0][:40]!r}: write them as a list, with the name as 'id'"
    return plain
