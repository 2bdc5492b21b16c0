"""The kinds of toy worlds: three of videos, and several of pictures. Picks by `toy.world.kind`, and builds those of pictures.

A world of pictures is built and kept exactly as that of videos (`toy.world`): files next to JSONL rows, in a folder that is
renamed into place when complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from vlmrl import fs
from vlmrl.data.encode import ANSWER_FORMATS, instruction
from vlmrl.errors import ConfigError
from vlmrl.extras.toy import click, gui, multitask, shell, spatial, tasks, think, world
from vlmrl.extras.toy.picture import Item
from vlmrl.extras.toy.tasks import SPLITS, Split
from vlmrl.registry import Catalogue

FORMAT = 5
"""Raise it when rows or pictures of any picture world change, so that kept worlds are built anew."""
GROUNDING = "grounding"
VIDEOS = (GROUNDING, *shell.GAMES)
"""Kinds with videos: temporal grounding, and the shell games."""


class KindRecipe(world.WorldRecipe, Protocol):
    """The fields of `config.schema.ToyWorldSection`."""

    @property
    def kind(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class PictureKind:
    """One family of tasks on pictures."""

    items: Callable[[int, Split, int], list[Item]]
    """(seed, split, index) -> the rows at that index. Counts of the recipe are counts of indices."""
    corpus: Callable[[], Iterable[str]]
    answer_types: tuple[str, ...]
    """Whose instructions the tokenizer must know."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `model.build_model`, where the tiny model is not the usual one."""


PICTURES: Catalogue[PictureKind] = Catalogue(
    "kind of toy pictures",
    {
        "multitask": PictureKind(items=multitask.items, corpus=multitask.corpus, answer_types=("number", "bbox")),
        "spatial": PictureKind(items=spatial.items, corpus=spatial.corpus, answer_types=("exact_text",)),
        "think": PictureKind(items=think.items, corpus=think.corpus, answer_types=("exact_text",)),
        "gui": PictureKind(items=gui.items, corpus=gui.corpus, answer_types=("action",)),
        "click": PictureKind(items=click.items, corpus=click.corpus, answer_types=("point",)),
    },
)


def make_world(
    out: Path, section: KindRecipe, progress: Callable[[int, int], None] | None = None, *, splits: Sequence[Split] = SPLITS
) -> dict[str, Any]:
    """Build the world of this recipe in `out`, unless it is there already; return its marker.

    `progress(done, total)` is called after each index of each split. Only `splits` are made, each as it is in the whole world.

    Raises:
        ConfigError: unknown kind.
        FileExistsError: `out` is there and is not a world (a world of another recipe is replaced).
    """
    if section.kind == GROUNDING:
        return world.make_world(out, section, progress, splits=splits)
    if section.kind in shell.GAMES:
        clip = partial(shell.clip, rules=shell.GAMES[section.kind])
        return world.make_world(out, section, progress, splits=splits, clip=clip, kind=section.kind)
    kind = _kind(section.kind)
    counts: dict[Split, int] = {split: int(getattr(section, split)) for split in splits}

    def build(folder: Path) -> dict[str, Any]:
        return _build(folder, kind, counts, int(section.seed), progress)

    return world.install(out, world_hash(section), build, media="images", splits=splits)


def world_hash(section: KindRecipe) -> str:
    """Hash of all that decides the rows and pictures of a world; names its folder in the cache."""
    if section.kind in VIDEOS:
        return world.world_hash(section, None if section.kind == GROUNDING else section.kind)
    _kind(section.kind)
    counts = {split: int(getattr(section, split)) for split in SPLITS}
    recipe = {"format": FORMAT, "kind": section.kind, "seed": int(section.seed), **counts}
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def tokenizer_corpus(kind: str) -> Iterable[str]:
    """Text to train the tokenizer of a kind on: its questions, thoughts and answers, and every instruction that may follow them.

    Raises:
        ConfigError: unknown kind.
    """
    if kind == GROUNDING:
        return tasks.tokenizer_corpus([instruction(answer_format, "time_span") for answer_format in ANSWER_FORMATS])
    if kind in shell.GAMES:
        return _corpus(shell.corpus(kind), ("exact_text",))
    picture = _kind(kind)
    return _corpus(picture.corpus(), picture.answer_types)


def model_arguments(kind: str) -> Mapping[str, Any]:
    """Those of `model.build_model` that worlds of this kind ask for.

    Raises:
        ConfigError: unknown kind.
    """
    return {} if kind in VIDEOS else _kind(kind).model


def _corpus(texts: Iterable[str], answer_types: Sequence[str]) -> Iterator[str]:
    yield from texts
    for answer_type in answer_types:
        for answer_format in ANSWER_FORMATS:
            yield from [f" {instruction(answer_format, answer_type)}"] * 16
    for role in ("user\n", "assistant\n", "system\n"):
        yield from [role] * 16


def _kind(name: str) -> PictureKind:
    if name not in PICTURES:
        raise ConfigError(f"toy.world.kind: unknown kind '{name}'; known: {', '.join((*VIDEOS, *PICTURES))}")
    return PICTURES[name]


def _build(
    folder: Path, kind: PictureKind, counts: dict[Split, int], seed: int, progress: Callable[[int, int], None] | None
) -> dict[str, Any]:
    marker: dict[str, Any] = {"format": FORMAT, "rows": {}, "images": {}}
    done, total = 0, sum(counts.values())
    for split, indices in counts.items():
        (folder / "images" / split).mkdir(parents=True)
        lines: list[str] = []
        count = size = 0
        for index in range(indices):
            for item in kind.items(seed, split, index):
                for name, data in item.files().items():
                    # Not synced one by one; `world.install` finds files that a crash emptied.
                    (folder / name).write_bytes(data)
                    count, size = count + 1, size + len(data)
                lines.append(json.dumps(item.row) + "\n")
            done += 1
            if progress is not None:
                progress(done, total)
        text = "".join(lines).encode()
        fs.write_bytes(folder / f"{split}.jsonl", text)
        marker["rows"][split] = hashlib.sha256(text).hexdigest()
        marker["images"][split] = {"count": count, "bytes": size}
    return marker
