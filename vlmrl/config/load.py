"""Recipe + base + presets + dotted overrides -> `Config`, with the origin of every value, or one `ConfigError` with every problem.

`vlmrl train configs/recipes/x.yaml stages.rl.loss.clip_high=0.28 run.seed=3`

A recipe is a file or the name of one (`vlmrl.paths`). It says only what differs from its `base:` (one level: a file of `configs/base/` by
its name, or a path; it has no base itself), from the preset that a stage names under `algorithm:` (`config.layers`), and from the schema's
defaults. Mappings merge, lists are replaced; an override reaches into a list by the item's name. This is pass 1 of checking and needs no
torch; method names and arguments are pass 2 (`config.methods`).
"""

from __future__ import annotations

import hashlib
import json
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import yaml

from vlmrl.config import tree
from vlmrl.config.explain import check, default_methods, is_guessed, salvage
from vlmrl.config.layers import names_preset, read_base, with_presets
from vlmrl.config.schema import Config, validate
from vlmrl.config.tree import Node
from vlmrl.config.where import located
from vlmrl.errors import ConfigError
from vlmrl.paths import find, missing


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedRecipe:
    """A checked recipe."""

    config: Config
    origins: dict[str, str]
    """Dotted path of every value -> `file:line`, `command line` or `default`."""
    text: str
    """The resolved recipe as YAML: no base, every default written out. Loading it gives the same config."""
    hash: str
    """SHA-256 of `text`, hexadecimal."""
    root: Node | None = None
    """The tree that the recipe was read from; None for a config that does not come from a file."""
    notes: tuple[str, ...] = ()
    """Which files were taken for what was given by name."""

    def located(self, text: str) -> str:
        """What is said of a path of the recipe, with the file and line that give it in front."""
        return text if self.root is None else located(text, self.root)


def load(path: str | Path, overrides: list[str], *, also: Callable[[Config], list[str]] | None = None) -> ResolvedRecipe:
    """Read, merge and check a recipe: a file, or the name of one in the working folder or of ours.

    `also` finds further problems (those of methods, which need torch); it is asked even where the recipe has other problems, about what
    is left without them, so that one run shows everything.

    Raises:
        ConfigError: with all problems found, each with its file and line (or `command line`), the bad key, the nearest known key
            and the expected type.
    """
    problems: list[str] = []
    notes: list[str] = []
    return _checked(resolve(_file(path, notes), overrides, problems, notes), problems, notes, also)


def load_mapping(
    recipe: Mapping[str, Any], overrides: list[str], *, also: Callable[[Config], list[str]] | None = None, name: str = "the recipe"
) -> ResolvedRecipe:
    """`load` for a recipe that is a mapping of plain values in place of a file. Its `base:` is looked for as one of a file in the working
    folder. Origins are `name`, since there are no lines.

    Raises:
        ConfigError: as `load`, or a value is none that a file could hold.
    """
    problems: list[str] = []
    notes: list[str] = []
    try:
        text = json.dumps(recipe, default=_plain, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: only plain values can stand in a recipe, functions in vlmrl.grpo(): {error}") from error
    # JSON is YAML: the same rules for scalars hold, and every text stays one
    root = tree.parse(text, name, problems, lines=False) or Node({}, name)
    return _checked(_merged(Path.cwd() / "recipe.yaml", root, overrides, problems, notes), problems, notes, also)


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    raise TypeError(f"{type(value).__name__} {value!r:.80}")


def _checked(root: Node, problems: list[str], notes: list[str], also: Callable[[Config], list[str]] | None) -> ResolvedRecipe:
    """The config of a merged tree; `problems` are those of reading it."""
    config = check(root, problems)
    usable, guessed = (config, frozenset[tuple[str, str]]()) if config is not None else salvage(root)
    if usable is not None:
        further = validate(usable)
        try:
            further += also(usable) if also is not None else []
        except ConfigError as error:  # a plug-in that cannot be imported
            further += error.problems
        problems += [located(problem, root) for problem in further if not is_guessed(problem, guessed)]
    if problems or config is None:
        raise ConfigError(list(dict.fromkeys(problems)))
    return replace(loaded(config, _origins(config, root), root), notes=tuple(dict.fromkeys(notes)))


def _file(asked: str | Path, notes: list[str]) -> Path:
    """The file of a recipe. A path that is not there is left to `tree.read`, which says why."""
    found = find("recipe", asked)
    if found is None:
        if Path(asked).suffix or len(Path(asked).parts) > 1:
            return Path(asked)
        raise missing("recipe", asked)
    if found.line is not None:
        notes.append(found.line)
    return found.path


def loaded(config: Config, origins: dict[str, str] | None = None, root: Node | None = None) -> ResolvedRecipe:
    """A config with its resolved text and hash, for configs that do not come from a file."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
    return ResolvedRecipe(
        config=config,
        origins=origins or {leaf.path: tree.DEFAULT for leaf in flat(config)},
        text=text,
        hash=hashlib.sha256(text.encode()).hexdigest(),
        root=root,
    )


def resolve(path: Path, overrides: list[str], problems: list[str], notes: list[str] | None = None) -> Node:
    """The merged tree of base, presets, recipe and overrides, unchecked. `notes` takes which files were found by their names."""
    root = tree.read(path, problems)
    if problems and not root.mapping:
        raise ConfigError(problems)  # nothing was read, so anything more would be noise
    return _merged(path, root, overrides, problems, notes)


def _merged(path: Path, root: Node, overrides: list[str], problems: list[str], notes: list[str] | None) -> Node:
    """The tree of a recipe with its base and the presets of its stages below it and the overrides on top. `path` is where the recipe is."""
    base = read_base(path, root, problems, notes)
    root = Node({k: v for k, v in (root.mapping or {}).items() if k != "base"}, root.origin)
    if base is not None:
        root = tree.merge(base, root)
    methods = default_methods(Config)
    of_presets = [text for text in overrides if names_preset(text)]
    for text in of_presets:
        root = tree.override(root, text, problems, methods)
    root = with_presets(path, root, problems, notes)
    for text in (text for text in overrides if text not in of_presets):
        if text.partition("=")[0].strip() == "base":
            problems.append(f"{tree.COMMAND_LINE}: '{text}': a base is named in the recipe only")
            continue
        root = tree.override(root, text, problems, methods)
    return root


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of a resolved config."""

    path: str
    """Dotted, as an override would write it."""
    loc: tuple[str | int, ...]
    """The same as keys and list positions."""
    value: Any


def flat(config: Config) -> list[Leaf]:
    """Every value of a config, in the order of the schema. A list is one value, unless all its items are sections or methods."""

    def walk(value: Any, path: tuple[str, ...], loc: tuple[str | int, ...]) -> list[Leaf]:
        if isinstance(value, dict) and value:
            children = typing.cast("dict[str, Any]", value)
            return [leaf for key, child in children.items() for leaf in walk(child, (*path, key), (*loc, key))]
        if isinstance(value, list) and _sections(typing.cast("list[object]", value)):
            items = typing.cast("list[dict[str, Any]]", value)
            names = [item.get("name") for item in items]
            return [leaf for i, item in enumerate(items) for leaf in walk(item, (*path, tree.segment(names, i)), (*loc, i))]
        return [Leaf(".".join(path), loc, value)]

    return walk(config.model_dump(mode="json"), (), ())


def _sections(items: list[object]) -> bool:
    """Whether a list holds sections or methods alone; trackers may stand beside plain names."""
    return bool(items) and all(isinstance(item, dict) for item in items)


def annotated(loaded: ResolvedRecipe) -> Iterator[str]:
    """The resolved recipe as lines of YAML, each value with its origin as a comment. Loading them gives the same config."""

    def walk(values: dict[str, Any], path: tuple[str, ...], indent: str) -> Iterator[str]:
        for key, value in values.items():
            here, start = (*path, key), f"{indent}{flow(key)}:"
            if isinstance(value, dict) and value:
                yield start
                yield from walk(typing.cast("dict[str, Any]", value), here, indent + "  ")
            elif isinstance(value, list) and _sections(typing.cast("list[object]", value)):
                yield start
                items = typing.cast("list[dict[str, Any]]", value)
                names = [item.get("name") for item in items]
                for i, item in enumerate(items):
                    first, *rest = walk(item, (*here, tree.segment(names, i)), indent + "    ")
                    yield f"{indent}  - {first.lstrip(' ')}"
                    yield from rest
            else:
                yield f"{start} {flow(value)}  # {loaded.origins['.'.join(here)]}"

    yield f"# {loaded.config.run.name}, hash {loaded.hash[:12]}"
    yield from walk(loaded.config.model_dump(mode="json"), (), "")


def flow(value: Any) -> str:
    """A value as YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, sort_keys=False, width=2**31)
    return text.removesuffix("\n").removesuffix("\n...")


def _origins(config: Config, root: Node) -> dict[str, str]:
    def origin(loc: tuple[str | int, ...]) -> str:
        node: Node | None = root
        for part in loc:
            children: Any = node.value if node is not None else None
            there = part in children if isinstance(children, dict) else isinstance(children, list)
            node = typing.cast("Node", children[part]) if there else None
        return node.origin if node is not None else tree.DEFAULT

    return {leaf.path: origin(leaf.loc) for leaf in flat(config)}
