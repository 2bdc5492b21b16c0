"""Lists the files of a source that is a folder, one split, or a data set of the Hub on this machine: nothing is downloaded.

    folder                  `save_to_disk` of the datasets library, or a folder of shards of one kind
    folder@train            one split of a saved `DatasetDict`, or of a folder as the Hub has them
    org/name@train          the same for a Hub data set that is already on this machine: below the data root, in the
                            Hub's cache (newest `main`), or in the cache of the datasets library

A file or folder of exactly that name comes first.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from vlmrl.data.raw import FILES, FORMATS, DataFile
from vlmrl.errors import DataError

_SPLIT = re.compile(r"(.+)@([A-Za-z0-9._-]+)")
_HUB_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SHARD = r"(?:-\d+-of-\d+)?"


def resolve(path: Path) -> tuple[DataFile, ...]:
    """The files behind the path of a source.

    Raises:
        DataError: there is no such file, folder, split or data set here; says where it was looked for.
    """
    if path.exists():
        return _whole(path)
    match = _SPLIT.fullmatch(path.name)
    if match is not None:
        return _split(path.with_name(match.group(1)), match.group(2))
    kinds = "a .jsonl or .parquet file, a folder, or org/name@split"
    raise DataError(f"{path}: no such file; give the path of {kinds}")


def _whole(path: Path) -> tuple[DataFile, ...]:
    """A file, a saved data set, or a folder of shards."""
    if path.is_file():
        if path.suffix in FILES:
            return (DataFile(path, FILES[path.suffix]),)
        from vlmrl.extras.importers.foreign_files import about_suffix

        raise DataError(about_suffix(path))
    if (path / "state.json").is_file():
        return _saved(path)
    if (path / "dataset_dict.json").is_file():
        splits = ", ".join(_splits(path))
        raise DataError(f"{path}: has the splits {splits}; choose one as {path.name}@SPLIT")
    files = sorted(p for p in path.iterdir() if p.is_file() and p.suffix in FORMATS)
    if not files:
        raise DataError(f"{path}: no such file; it is a folder without .jsonl, .parquet or .arrow files of its own")
    return _same_kind(files, str(path))


def _saved(folder: Path) -> tuple[DataFile, ...]:
    """`Dataset.save_to_disk`: Arrow streams that state.json lists."""
    state = _json(folder / "state.json")
    names = [item.get("filename") if isinstance(item, dict) else None for item in state.get("_data_files") or []]
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise DataError(f"{folder}: was saved with an index of rows by an old version of datasets; load it and save it again")
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise DataError(f"{folder}: state.json lists no files of its own folder under '_data_files'")
    parts = tuple(DataFile(folder / str(name), "arrow") for name in names)
    missing = [part.path.name for part in parts if not part.path.is_file()]
    if missing:
        raise DataError(f"{folder}: {missing[0]} is listed in state.json and is not there; copy the folder again")
    return parts


def _splits(folder: Path) -> list[str]:
    names = _json(folder / "dataset_dict.json").get("splits")
    if not isinstance(names, list) or not all(isinstance(name, str) and _HUB_PART.fullmatch(name) for name in names):
        raise DataError(f"{folder}/dataset_dict.json: 'splits' is not a list of names")
    return [str(name) for name in names]


def _split(folder: Path, split: str) -> tuple[DataFile, ...]:
    """One split of a folder, else of a data set of the Hub that is on this machine."""
    if folder.is_dir():
        return _split_of_folder(folder, split)
    org, name = folder.parent.name, folder.name
    if not (_HUB_PART.fullmatch(org) and _HUB_PART.fullmatch(name)):
        raise DataError(f"{folder}: no such folder, and '{org}/{name}' is no name of a data set on the Hub (org/name)")
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser() / f"datasets--{org}--{name}"
    cache = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets").expanduser() / f"{org}___{name}".lower()
    if (hub / "snapshots").is_dir():
        return _split_of_folder(_snapshot(hub), split)
    if not cache.is_dir():
        cache = cache.with_name(f"{org}___{name}")
    if cache.is_dir():
        return _split_of_cache(cache, split)
    raise DataError(
        f"{org}/{name}@{split}: this data set is not on this machine (looked for {folder}, {hub} and {cache}) and nothing is "
        f"downloaded by itself; get it with: hf download --repo-type dataset {org}/{name}"
    )


def _snapshot(hub: Path) -> Path:
    """The folder of `refs/main` in the Hub's cache, or the only one there is."""
    main = hub / "refs" / "main"
    if main.is_file():
        folder = hub / "snapshots" / main.read_text(encoding="utf-8").strip()
        if folder.parent == hub / "snapshots" and folder.is_dir():
            return folder
    folders = sorted(p for p in (hub / "snapshots").iterdir() if p.is_dir())
    if len(folders) != 1:
        raise DataError(f"{hub}: {len(folders)} snapshots and no usable refs/main; give the folder of one as the path of the source")
    return folders[0]


def _split_of_folder(folder: Path, split: str) -> tuple[DataFile, ...]:
    """`folder/<split>` as `save_to_disk` leaves it; or files `<split>`, `<split>-00000-of-00002` here or in `data`, or `<split>/*`."""
    if (folder / "dataset_dict.json").is_file():
        names = _splits(folder)
        if split not in names:
            raise DataError(f"{folder}: has no split '{split}'; it has {', '.join(names)}")
        return _saved(folder / split)
    pattern = re.compile(re.escape(split) + _SHARD)
    places = [p for p in (folder, folder / "data") if p.is_dir()]
    for place in places:
        files = sorted(p for p in place.iterdir() if p.is_file() and p.suffix in FORMATS and pattern.fullmatch(p.stem))
        if files:
            return _same_kind(files, f"{folder}@{split}")
        if (place / split).is_dir():
            return _whole(place / split)
    seen = sorted({re.sub(_SHARD + r"\Z", "", p.stem) for place in places for p in place.iterdir() if p.suffix in FORMATS})
    nothing = "it has no .parquet, .jsonl or .arrow files here or in 'data'; give the folder of one subset"
    listed = "it has " + ", ".join(seen) if seen else nothing
    raise DataError(f"{folder}: has no split '{split}'; {listed}")


def _split_of_cache(cache: Path, split: str) -> tuple[DataFile, ...]:
    """`<config>/<version>/<hash>/<name>-<split>[-shard].arrow`, as the datasets library leaves what it prepared."""
    pattern = re.compile(rf".+-{re.escape(split)}{_SHARD}")
    files = sorted(p for p in cache.glob("*/*/*/*.arrow") if pattern.fullmatch(p.stem) and not p.name.startswith("cache-"))
    folders = sorted({p.parent for p in files})
    if not folders:
        raise DataError(f"{cache}: the data set is in the cache of datasets, but its split '{split}' is not")
    if len(folders) > 1:
        listed = ", ".join(str(f.relative_to(cache)) for f in folders)
        raise DataError(
            f"{cache}: split '{split}' is there {len(folders)} times ({listed}); give the folder of one as the path of the source"
        )
    return _same_kind(files, str(folders[0]))


def _same_kind(files: list[Path], what: str) -> tuple[DataFile, ...]:
    kinds = sorted({p.suffix for p in files})
    if len(kinds) > 1:
        raise DataError(f"{what}: has files of several kinds ({', '.join(kinds)}), which may be the same rows twice; keep one kind")
    for path in files:
        found = re.search(r"-(\d+)-of-(\d+)\Z", path.stem)
        if found and int(found.group(2)) != len(files):
            raise DataError(f"{what}: {path.name} is one of {int(found.group(2))} files, {len(files)} are there; get the others too")
    return tuple(DataFile(path, FORMATS[path.suffix]) for path in files)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: must hold a JSON object")
    return value
