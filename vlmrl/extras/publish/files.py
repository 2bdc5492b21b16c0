"""Which files of a checkpoint go to a hub, and a folder that holds just these.

Weights as safetensors and what opens them; never the state of an optimizer, other formats of weights, or anything unknown. Paths of this
machine that stand in JSON files are cut to their last name.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.cli.names import size_text
from vlmrl.errors import ConfigError
from vlmrl.train.manifest import MANIFEST, files

SUFFIXES = (".json", ".safetensors", ".txt", ".jinja", ".model")
"""What a processor and a model are saved as."""
STATE = ("optimizer", "scheduler", "rng", "training_args", "trainer_state")
"""Beginnings of names of what only training needs."""
TOKENS = ("tokenizer.json", "vocab.json")
"""Files of tokens, some of which look like paths: `/` is one in every vocabulary."""
ADAPTER = "adapter"
"""Folder of an adapter alone."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The files of a checkpoint."""

    folder: Path
    names: tuple[str, ...]
    """That are published, relative to the folder."""
    left_out: dict[str, str]
    """Name -> why it stays here."""


def choose(folder: Path, *, with_adapter: bool) -> Chosen:
    """Sort the files of a model folder. `with_adapter`: publish the adapter too, whose base model is one that others can get.

    Raises:
        ConfigError: there are no weights among them.
    """
    names: list[str] = []
    left: dict[str, str] = {}
    for name, path in sorted(files(folder).items()):
        place, last = name.split("/")[:-1], name.split("/")[-1]
        if path.is_symlink():
            left[name] = "a link"
        elif last.startswith(STATE):
            left[name] = "state of training"
        elif name == MANIFEST:
            left[name] = "hashes of the run's own files, which the card changes"
        elif place not in ([], [ADAPTER]) or path.suffix not in SUFFIXES or last.startswith("."):
            left[name] = "not a file that opens the model"
        elif place == [ADAPTER] and not with_adapter:
            left[name] = "its base model is a stage of the run that is not published"
        else:
            names.append(name)
    if not any(name.endswith(".safetensors") and "/" not in name for name in names):
        raise ConfigError(f"{folder}: no weights (*.safetensors) to publish")
    return Chosen(folder=folder, names=tuple(names), left_out=left)


def stage(chosen: Chosen, target: Path, texts: dict[str, str], *, base_model: str | None) -> None:
    """Fill an empty folder: links to the weights, JSON files without paths of this machine, and `texts` by name.

    Args:
        base_model: what an adapter's config names as its base.

    Raises:
        StorageError: the disk refused.
    """
    for name in chosen.names:
        source, out = chosen.folder / name, target / name
        fs.mkdir(out.parent)
        if source.suffix == ".json" and source.name not in TOKENS:
            value = json.loads(source.read_text(encoding="utf-8"))
            if name == f"{ADAPTER}/adapter_config.json" and base_model is not None:
                value["base_model_name_or_path"] = base_model
            fs.write_text(out, json.dumps(without_paths(value), indent=2, ensure_ascii=False) + "\n")
            continue
        try:
            os.link(source, out)
        except OSError:
            shutil.copyfile(source, out)
    for name, text in texts.items():
        fs.write_text(target / name, text)


def without_paths(value: Any) -> Any:
    """A JSON value in which every text that is a path of this machine is its last name."""
    if isinstance(value, dict):
        return {key: without_paths(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_paths(one) for one in value]
    if isinstance(value, str) and (value.startswith(("/", "~")) and len(value) < 4096 and Path(value).expanduser().exists()):
        return Path(value).name
    return value


def sizes(folder: Path) -> list[tuple[str, int]]:
    """(name, bytes) of every file, largest first."""
    return sorted(((name, path.stat().st_size) for name, path in files(folder).items()), key=lambda one: (-one[1], one[0]))


def listing(folder: Path, left_out: dict[str, str]) -> Iterable[str]:
    """Lines that say what is published and what is not."""
    found = sizes(folder)
    for name, count in found:
        yield f"{size_text(count):>10}  {name}"
    yield f"{size_text(sum(count for _, count in found)):>10}  in {len(found)} files"
    for name, why in left_out.items():
        yield f"  left out  {name} ({why})"
