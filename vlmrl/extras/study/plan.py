"""From a study to its runs, and the plan that is written before the first of them and holds for all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vlmrl import __version__, fs
from vlmrl.config.load import flat, load
from vlmrl.errors import ConfigError, StorageError
from vlmrl.extras.study.spec import Study

if TYPE_CHECKING:
    from vlmrl.config.schema import Config

PLAN = "plan.json"
RUN = "VLMRL_STUDY_RUN"
"""Environment variable of each run: its folder, for methods that write something beside it."""
_UNSAID = ("run.", "checkpoint.", "keep.", "toy.cache", "media.cache_bytes")
"""Keys of a recipe that are no part of what is asked."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One command."""

    kind: Literal["prepare", "start", "arm"]
    """`prepare` makes a generated world and its base model, `start` what arms begin from."""
    arm: str
    """Name of the arm or start."""
    seed: int
    words: tuple[str, ...]
    """Of the command line, behind `vlmrl`."""
    folder: Path
    mark: Path
    """The file that says that it is done."""
    log: Path
    after: tuple[Run, ...] = field(default=(), repr=False)
    """What has to be done before."""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def done(self) -> bool:
        return self.mark.exists()


@dataclass(frozen=True)
class Plan:
    """A study in its folder."""

    study: Study
    out: Path

    def runs(self, seeds: Sequence[int], *, pilot: bool = False) -> list[Run]:
        """List the arms' runs of these seeds, seed by seed, so that a study that is stopped has whole pairs."""
        return [self.run(arm, seed, pilot=pilot) for seed in seeds for arm in self.study.arms if pilot or self._has(arm, seed)]

    def _has(self, arm: str, seed: int) -> bool:
        return seed in self.study.seeds_of(arm, self.study.seeds)

    def run(self, arm: str, seed: int, *, pilot: bool = False) -> Run:
        """Make the run of an arm and seed, with what it needs before."""
        of = self.study.arms[arm]
        given = [*self.settings(seed), *of.set]
        before, places = list(self._prepared(seed)), []
        if of.start is not None:
            start = self._start(of.start, seed)
            before.append(start)
            places = [f"model.path={start.folder.absolute() / 'final'}"]
            given += self._stages(of.set, leave=self.study.starts[of.start].stages)
        taken = {key: self._start(name, seed) for key, name in of.takes.items()}
        before += [start for start in taken.values() if start not in before]
        places += [f"{key}={start.folder.absolute() / 'final'}" for key, start in taken.items()]
        folder = self.out / ("pilot" if pilot else "runs") / f"{arm}-s{seed}"
        return self._trained("arm", arm, seed, folder, given, places, before)

    def _start(self, name: str, seed: int) -> Run:
        start = self.study.starts[name]
        given = [*self.settings(seed), *start.set, *self._stages(start.set, keep=start.stages)]
        return self._trained("start", name, seed, self.out / "starts" / f"{name}-s{seed}", given, [], list(self._prepared(seed)))

    def _trained(
        self, kind: Literal["start", "arm"], arm: str, seed: int, folder: Path, given: list[str], places: list[str], before: list[Run]
    ) -> Run:
        where = [f"run.name={folder.name}", f"run.root={folder.parent.absolute()}", *self._cache(seed), *places]
        words = ("train", self.study.recipe, *given, *where, *self.study.machine)
        log = self.out / "logs" / f"{folder.parent.name}-{folder.name}.log"
        return Run(kind=kind, arm=arm, seed=seed, words=words, folder=folder, mark=folder / "FINISHED", log=log, after=tuple(before))

    def settings(self, seed: int) -> list[str]:
        """The overrides that all arms of a seed share: those of the study, and the keys that follow the seed."""
        return [*self.study.set, *(f"{key}={seed}" for key in self.study.pair)]

    def _stages(self, given: Sequence[str], *, keep: Sequence[str] = (), leave: Sequence[str] = ()) -> list[str]:
        """The override that keeps some stages of the recipe, or leaves some out; none where nothing is named."""
        if not keep and not leave:
            return []
        stages = self._config(given).model_dump(mode="json")["stages"]
        known = [stage["name"] for stage in stages]
        if missing := [name for name in (*keep, *leave) if name not in known]:
            raise ConfigError(f"starts: the recipe has no stage '{missing[0]}' (stages: {', '.join(known)})")
        kept = [stage for stage in stages if (stage["name"] in keep if keep else stage["name"] not in leave)]
        return [f"stages={json.dumps(kept)}"]

    def _config(self, given: Sequence[str]) -> Config:
        return load(self.study.recipe, [*self.settings(self.study.seeds[0]), *given]).config

    # ---- generated worlds

    @cached_property
    def _toy(self) -> bool:
        config = load(self.study.recipe, self.settings(self.study.seeds[0])).config
        return config.toy is not None and "toy" in (config.model.path, config.data.root)

    def cache(self, seed: int) -> Path | None:
        """Folder of the generated world and base model of a seed; None where no seed has its own, or nothing is generated."""
        own = any(key.startswith("toy.") for key in self.study.pair)
        return self.out / "cache" / f"s{seed}" if own and self._toy else None

    def _cache(self, seed: int) -> list[str]:
        folder = self.cache(seed)
        return [] if folder is None else [f"toy.cache={folder.absolute()}"]

    def _prepared(self, seed: int) -> tuple[Run, ...]:
        """The run that makes the base model: a cache is locked meanwhile, so arms would only wait for each other."""
        if not self._toy:
            return ()
        name = "prepare" if self.cache(seed) is None else f"prepare-s{seed}"
        words = ("tools", "toy", "prepare", self.study.recipe, *self.settings(seed), *self._cache(seed), *self.study.machine)
        mark = self.out / "prepared" / name
        return (Run(kind="prepare", arm="", seed=seed, words=words, folder=mark, mark=mark, log=self.out / "logs" / f"{name}.log"),)

    # ---- what is asked

    def recipes(self, also: Callable[[Config], list[str]] | None = None) -> dict[str, dict[str, Any]]:
        """Arm -> dotted key -> value of its recipe with the first seed, without what belongs to places.

        Raises:
            ConfigError: with the problems of all arms, each behind the arm's name.
        """
        problems: list[str] = []
        out: dict[str, dict[str, Any]] = {}
        for name, arm in self.study.arms.items():
            try:
                given = [*self.settings(self.study.seeds[0]), *arm.set, *(f"{key}={start}" for key, start in arm.takes.items())]
                config = load(self.study.recipe, given, also=also).config
            except ConfigError as error:
                problems += [f"arms.{name}: {text}" for text in error.problems]
                continue
            values = {leaf.path: leaf.value for leaf in flat(config) if not leaf.path.startswith(_UNSAID)}
            out[name] = values | ({} if arm.start is None else {"start": arm.start})
        if problems:
            raise ConfigError(problems)
        return out

    def asked(self, recipes: Mapping[str, Any]) -> dict[str, Any]:
        """All that may not change after the first run."""
        study = self.study.model_dump(mode="json", exclude={"machine"})
        for arm in study["arms"].values():
            if not arm["takes"]:  # a plan that was fixed before there was such a key is still the same
                del arm["takes"]
        return {"study": study, "recipes": {arm: dict(values) for arm, values in recipes.items()}}


def digest(asked: Mapping[str, Any]) -> str:
    """Hash what is asked."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def fix(out: Path, asked: Mapping[str, Any]) -> str:
    """Write the plan where there is none yet, and hold it against the one that is there.

    Returns:
        Its digest.

    Raises:
        ConfigError: something else was asked when the study began.
        StorageError: the plan there is damaged.
    """
    path, found = out / PLAN, digest(asked)
    if not path.exists():
        written = {"digest": found, "written": datetime.now(timezone.utc).isoformat(timespec="seconds"), "vlmrl": __version__, **asked}
        fs.mkdir(out)
        fs.write_text(path, json.dumps(written, indent=1, ensure_ascii=False) + "\n")
        return found
    try:
        before = json.loads(path.read_bytes())
        began = {key: before[key] for key in ("study", "recipes")}
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path}: not the plan of a study: {error!r}") from error
    if digest(began) == found:
        return found
    changes = differences(began, json.loads(json.dumps(asked)))
    raise ConfigError(
        [
            f"{path}: the plan was fixed {before.get('written', '')}, and something else is asked now; put it back, or ask in another "
            "folder (--out)",
            *(f"changed: {text}" for text in changes[:20]),
            *([f"and {len(changes) - 20} more"] if len(changes) > 20 else []),
        ]
    )


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """List `key: before -> after` of all values that differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = dict.fromkeys([*before, *after])
        return [text for key in keys for text in differences(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))]
    if before == after:
        return []
    return [f"{path.removeprefix('study.')}: {_short(before)} -> {_short(after)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:117]}..."


def unlike(recipes: Mapping[str, Mapping[str, Any]], arms: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Key -> arm -> value of what differs between arms; None where an arm's recipe has no such key."""
    keys = dict.fromkeys(key for arm in arms for key in recipes[arm])
    found = {key: {arm: recipes[arm].get(key) for arm in arms} for key in keys}
    return {key: values for key, values in found.items() if len({json.dumps(value, sort_keys=True) for value in values.values()}) > 1}
