"""The embedded world and model of a recipe, made when they are not there and kept by the hash of what they were made from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from vlmrl import fs
from vlmrl.config.load import loaded
from vlmrl.config.schema import OF_THE_MACHINE, Config, SftSection, ToySection, ToyWorldSection
from vlmrl.errors import ConfigError
from vlmrl.extras.toy.kinds import GROUNDING, VIDEOS, make_world, model_arguments, tokenizer_corpus, world_hash
from vlmrl.extras.toy.lock import locked
from vlmrl.extras.toy.model import HIDDEN, build_model
from vlmrl.extras.toy.tasks import SPLITS, Split
from vlmrl.extras.toy.world import MARKER, usable
from vlmrl.run.loop import until_line
from vlmrl.run.start import Places, train_from
from vlmrl.run.ui import Ui
from vlmrl.train import dist

_VERSION = 1
"""Raise it when the way base models are made changes without a change of the recipe."""


def prepare(cfg: Config, ui: Ui) -> Places:
    """Where the model and the data of a recipe are; makes what the recipe calls `toy` and is not in the cache yet.

    Raises:
        ConfigError: several ranks are running and the base model is not in the cache.
    """
    if cfg.toy is None or "toy" not in (cfg.model.path, cfg.data.root):
        return Places(model=cfg.model.path, data=Path(cfg.data.root).expanduser())
    cache = Path(cfg.toy.cache).expanduser()
    fs.mkdir(cache)
    with locked(cache / "LOCK", ui):
        made = cfg.model.path != "toy" or (_base_folder(cfg, cfg.toy, cache) / "run" / "FINISHED").exists()
        sections = [*cfg.stages, *(() if made or cfg.toy.base is None else (cfg.toy.base,))]
        sources = [section.source for section in sections] + [section.until.source for section in sections if section.until is not None]
        if cfg.eval.source is not None:
            sources.append(cfg.eval.source)
        data = Path(cfg.data.root).expanduser()
        if cfg.data.root == "toy":
            data = world(cfg.toy.world, cache, ui, [source.path for source in sources])
        model = str(_base(cfg, cfg.toy, cache, data, ui)) if cfg.model.path == "toy" else cfg.model.path
    return Places(model=model, data=data)


def untrained(toy: ToySection, folder: Path) -> None:
    """Write the tiny model of a recipe with its random weights."""
    kind = toy.world.kind
    build_model(folder, seed=toy.base_seed, corpus=tokenizer_corpus(kind), width=toy.base_width, **model_arguments(kind))


def default_world(ui: Ui, sources: Sequence[str] = (), kind: str = GROUNDING) -> Path:
    """A world of this kind with the default counts and seed, made if it is not in the default cache.

    Args:
        sources: the files of rows that are wanted; only their splits are made, in a folder beside that of the whole world. All by default.
    """
    toy = ToySection.model_validate({"world": {"kind": kind}})
    cache = Path(toy.cache).expanduser()
    fs.mkdir(cache)
    with locked(cache / "LOCK", ui):
        return world(toy.world, cache, ui, sources)


def world(recipe: ToyWorldSection, cache: Path, ui: Ui, sources: Sequence[str] = ()) -> Path:
    """Folder of the generated media and rows: of the whole world, or of the splits that the files `sources` are."""
    folder, splits = world_folder(recipe, cache, sources)
    media = _media(recipe)
    total = sum(getattr(recipe, split) for split in splits)
    with ui.bar(f"make {'videos' if media == 'videos' else 'pictures'}", total) as bar:
        make_world(folder, recipe, lambda done, _: bar.update(done), splits=splits)
        bar.update(total)
    return folder


def world_folder(recipe: ToyWorldSection, cache: Path, sources: Sequence[str] = ()) -> tuple[Path, tuple[Split, ...]]:
    """Where `world` keeps or will keep the splits that the files `sources` are, and these splits (all of them where none is named)."""
    files = {source.partition("#")[0] for source in sources}
    splits: tuple[Split, ...] = tuple(split for split in SPLITS if f"{split}.jsonl" in files)
    digest = world_hash(recipe)
    folder = cache / f"world-{digest}"
    if len(splits) < max(len(files), 1):  # other files, or none named
        splits = SPLITS
    if splits != SPLITS:
        # any that has these splits will do: a recipe reads fewer of them once its base model is made
        kept = [folder, *(marker.parent for marker in sorted(cache.glob(f"{folder.name}-*/{MARKER}")))]
        own = cache / f"{folder.name}-{'-'.join(splits)}"
        folder = next((one for one in kept if usable(one, digest, _media(recipe), splits) is not None), own)
    return folder, splits


def _media(recipe: ToyWorldSection) -> str:
    return "videos" if recipe.kind in VIDEOS else "images"


def _base_folder(cfg: Config, toy: ToySection, cache: Path) -> Path:
    """Where the base model of a recipe is kept: named by the hash of what it is made from."""
    assert toy.base is not None
    identity = {
        "version": _VERSION,
        "world": world_hash(toy.world),
        "base": toy.base.model_dump(mode="json"),
        "seed": toy.base_seed,
        "positions": cfg.model.positions,
        "media": (toy.base_media or cfg.media).model_dump(
            mode="json", exclude={*OF_THE_MACHINE, "max_tiles"}
        ),  # its pictures are never cut
        **({} if toy.base_width == HIDDEN else {"width": toy.base_width}),
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    return cache / f"base-{digest}"


def _base(cfg: Config, toy: ToySection, cache: Path, data: Path, ui: Ui) -> Path:
    """Folder of the pretrained tiny model: a run of its own, with one supervised stage from random weights."""
    assert toy.base is not None
    folder = _base_folder(cfg, toy, cache)
    if (folder / "run" / "FINISHED").exists():
        ui.say(f"base model: {folder / 'run' / 'final'} (cached)")
        _tell_score(folder / "run", toy.base, ui)
        return folder / "run" / "final"
    if dist.world() > 1:
        raise ConfigError("the toy base model is not in the cache yet: run the recipe once without a multi-process launcher")
    start = folder / "init"
    if not start.exists():
        fs.mkdir(folder)
        temporary = folder / fs.temporary_name("init")
        untrained(toy, temporary)
        fs.rename(temporary, start)
    # which splits lie where may differ at the next start; a run refuses to go on with another root
    root = cache / f"world-{world_hash(toy.world)}" if cfg.data.root == "toy" else data
    recipe = Config.model_validate(
        {
            "run": {"name": "run", "root": str(folder), "seed": toy.base_seed, "trackers": [], "threads": cfg.run.threads},
            "model": {"path": str(start), "device": cfg.model.device, "positions": cfg.model.positions},
            "media": (toy.base_media or cfg.media).model_dump(),
            "data": cfg.data.model_dump() | {"root": str(root)},
            "stages": [toy.base.model_dump()],
            "eval": {"at_start": False},
            "checkpoint": {"every": 200},
        }
    )
    ui.say("no base model in the cache: pretraining the tiny one (once)")
    train_from(loaded(recipe), Places(model=str(start), data=data), ui)
    return folder / "run" / "final"


def _tell_score(run: Path, stage: SftSection, ui: Ui) -> None:
    """Say again of a kept model how well it answered the held-out rows, where that is how its training ended."""
    if stage.until is None:
        return
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    seen = [line for line in lines if "until/score" in line]
    if seen:
        ui.say(until_line(stage.name, stage.until.score, seen[-1]["until/score"], seen[-1]["step"]))
