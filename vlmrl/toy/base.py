"""The embedded world and model of a recipe, made when they are not there and kept by the hash of what they were made from."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from vlmrl import fs
from vlmrl.config.load import loaded
from vlmrl.config.schema import Config, ToySection
from vlmrl.errors import ConfigError
from vlmrl.toy.kinds import make_world, tokenizer_corpus, world_hash
from vlmrl.toy.model import build_model
from vlmrl.toy.tasks import SPLITS, Split
from vlmrl.toy.world import make_world as make_videos
from vlmrl.toy.world import usable
from vlmrl.train import dist
from vlmrl.train.run import Places, train_from
from vlmrl.train.ui import Ui

_VERSION = 1
"""Raise it when the way base models are made changes without a change of the recipe."""
_MACHINE = {"cache_bytes", "prefetch", "workers", "deadline", "vision_cache_dir", "vision_cache_bytes"}
"""Media settings that change how fast things go and not what is seen."""


def prepare(cfg: Config, ui: Ui) -> Places:
    """Where the model and the data of a recipe are; makes what the recipe calls `toy` and is not in the cache yet.

    Raises:
        ConfigError: several ranks are running and the base model is not in the cache.
    """
    if cfg.toy is None or "toy" not in (cfg.model.path, cfg.data.root):
        return Places(model=cfg.model.path, data=Path(cfg.data.root).expanduser())
    cache = Path(cfg.toy.cache).expanduser()
    fs.mkdir(cache)
    with _locked(cache / "LOCK", ui):
        data = world(cfg.toy, cache, ui) if cfg.data.root == "toy" else Path(cfg.data.root).expanduser()
        model = str(_base(cfg, cfg.toy, cache, data, ui)) if cfg.model.path == "toy" else cfg.model.path
    return Places(model=model, data=data)


def default_world(ui: Ui, sources: Sequence[str] = ()) -> Path:
    """The world of a recipe that changes nothing about it, made if it is not in the default cache.

    Args:
        sources: the files of rows that are wanted; only their splits are made, in a folder beside that of the whole world. All by default.
    """
    toy = ToySection()
    cache = Path(toy.cache).expanduser()
    fs.mkdir(cache)
    files = {source.partition("#")[0] for source in sources}
    splits: tuple[Split, ...] = tuple(split for split in SPLITS if f"{split}.jsonl" in files)
    with _locked(cache / "LOCK", ui):
        if len(splits) < max(len(files), 1) or splits == SPLITS:
            return world(toy, cache, ui)
        whole, recipe = cache / f"world-{world_hash(toy.world)}", world_hash(toy.world)
        if usable(whole, recipe, "videos", splits) is not None:
            return whole
        folder = cache / f"world-{recipe}-{'-'.join(splits)}"
        total = sum(getattr(toy.world, split) for split in splits)
        with ui.bar("make videos", total) as bar:
            make_videos(folder, toy.world, lambda done, _: bar.update(done), splits=splits)
            bar.update(total)
        return folder


def world(toy: ToySection, cache: Path, ui: Ui) -> Path:
    """Folder of the generated media and rows."""
    folder = cache / f"world-{world_hash(toy.world)}"
    total = sum(getattr(toy.world, split) for split in SPLITS)
    with ui.bar("make videos" if toy.world.kind == "video" else "make pictures", total) as bar:
        make_world(folder, toy.world, lambda done, _: bar.update(done))
        bar.update(total)
    return folder


def _base(cfg: Config, toy: ToySection, cache: Path, data: Path, ui: Ui) -> Path:
    """Folder of the pretrained tiny model: a run of its own, with one supervised stage from random weights."""
    assert toy.base is not None
    identity = {
        "version": _VERSION,
        "world": world_hash(toy.world),
        "base": toy.base.model_dump(mode="json"),
        "seed": toy.base_seed,
        "positions": cfg.model.positions,
        "media": cfg.media.model_dump(mode="json", exclude=_MACHINE),
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache / f"base-{digest}"
    if (folder / "run" / "FINISHED").exists():
        ui.say(f"base model: {folder / 'run' / 'final'} (cached)")
        return folder / "run" / "final"
    if dist.world() > 1:
        raise ConfigError("the toy base model is not in the cache yet: run the recipe once without a multi-process launcher")
    start = folder / "init"
    if not start.exists():
        fs.mkdir(folder)
        temporary = folder / fs.temporary_name("init")
        build_model(temporary, seed=toy.base_seed, corpus=tokenizer_corpus(toy.world.kind))
        fs.rename(temporary, start)
    recipe = Config.model_validate(
        {
            "run": {"name": "run", "root": str(folder), "seed": toy.base_seed, "trackers": [], "threads": cfg.run.threads},
            "model": {"path": str(start), "device": cfg.model.device, "positions": cfg.model.positions},
            "media": cfg.media.model_dump(),
            "data": cfg.data.model_dump() | {"root": str(data)},
            "stages": [toy.base.model_dump()],
            "eval": {"at_start": False},
            "checkpoint": {"every": 200},
        }
    )
    ui.say("no base model in the cache: pretraining the tiny one (once)")
    train_from(loaded(recipe), Places(model=str(start), data=data), ui)
    return folder / "run" / "final"


@contextmanager
def _locked(path: Path, ui: Ui) -> Iterator[None]:
    """One process at a time makes things in the cache; a second one waits and then finds them made."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            ui.say(f"waiting for another process that is preparing {path.parent}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
