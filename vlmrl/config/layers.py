"""Reads what lies below a recipe: the file that `base:` names, and for each stage the preset that `algorithm:` names.

A preset is a file of `configs/algorithms/`: what a paper sets together, for each kind of stage that it is about.

    title: "..."              # these four are shown by `vlmrl list algorithm`; none must be given
    paper: arXiv:2503.14476
    for: ...                  # what the paper made it for
    without: ...              # what of the paper is not in the bundle
    grpo:                     # keys of a stage of this kind
      loss: {name: ..., clip_high: 0.28}
      beta: 0.0

Recipe over preset is as recipe over base: mappings merge key by key, lists are replaced. The key itself goes: a config knows slots only, so
a run is the same whether its recipe names a preset or writes it out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vlmrl.config import tree
from vlmrl.config.tree import Node
from vlmrl.errors import ConfigError
from vlmrl.paths import find, names, shipped, shown
from vlmrl.registry import nearest

PRESET = "algorithm"
"""Key of a stage that names a preset."""
FACTS = ("title", "paper", "for", "without")
"""What a preset says of itself; every other key of its file is a kind of stage."""
_NAME = re.compile(r"[A-Za-z0-9_-]+")


def read_base(path: Path, root: Node, problems: list[str], notes: list[str] | None = None) -> Node | None:
    """The tree that `base:` of a recipe names, or None without one. A path that ends in .yaml is relative to the recipe. A name is looked
    for in `base/` beside the recipe's folder, then beside the recipe, in the working folder, and among ours."""
    entry = (root.mapping or {}).get("base")
    found = None if entry is None else _file("base", "base", entry, path, problems, notes)
    if found is None:
        return None
    base = tree.read(Path(shown(found)), problems)
    if "base" in (base.mapping or {}):
        problems.append(f"{(base.mapping or {})['base'].origin}: base: a base has no base of its own")
    return base


def with_presets(path: Path, root: Node, problems: list[str], notes: list[str] | None = None) -> Node:
    """The tree with the preset of each stage below the stage, and without the key that names it. Files are looked for as those of bases,
    in `algorithms/`; `path` is where the recipe is."""
    stages = (root.mapping or {}).get("stages")
    if stages is None or stages.items is None:
        return root
    labels = [stage.name for stage in stages.items]
    changed: list[Node] = []
    for index, stage in enumerate(stages.items):
        below = read_preset(path, stage, f"stages.{tree.segment(labels, index)}", problems, notes)
        own = stage if stage.mapping is None else Node({k: v for k, v in stage.mapping.items() if k != PRESET}, stage.origin)
        changed.append(own if below is None else tree.merge(below, own))
    return Node({**(root.mapping or {}), "stages": Node(changed, stages.origin)}, root.origin)


def read_preset(path: Path, stage: Node, where: str, problems: list[str], notes: list[str] | None = None) -> Node | None:
    """What the preset that a stage names sets in a stage of its kind; None where it names none. `where` is the stage's dotted path."""
    entry, kind = ((stage.mapping or {}).get(key) for key in (PRESET, "kind"))
    where = f"{where}.{PRESET}"
    found = None if entry is None or entry.value is None else _file("algorithm", where, entry, path, problems, notes)
    if entry is None or found is None:
        return None
    preset = tree.read(Path(shown(found)), problems).mapping or {}
    sections = {key: node for key, node in preset.items() if key not in FACTS}
    problems += [f"{node.origin}: {key}: expected the keys of a stage of this kind" for key, node in sections.items() if not node.mapping]
    nested = [keys[PRESET] for node in sections.values() if PRESET in (keys := node.mapping or {})]
    problems += [f"{node.origin}: {PRESET}: a preset names no other" for node in nested]
    if kind is None or not isinstance(kind.value, str):
        return None  # a problem of the recipe that is told elsewhere
    if kind.value not in sections:
        problems.append(f"{entry.origin}: {where}: '{entry.value}' is for stages of kind {', '.join(sections)}, not {kind.value!r}")
        return None
    return Node({k: v for k, v in (sections[kind.value].mapping or {}).items() if k != PRESET}, stage.origin)


def names_preset(override: str) -> bool:
    """Whether an override says which preset a stage has. Such overrides come before the others, which act on what the preset gives."""
    key, _, value = override.partition("=")
    parts = key.strip().split(".")
    return parts[0] == "stages" and (parts[2:3] == [PRESET] or (len(parts) < 3 and f"{PRESET}:" in value))


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset as `vlmrl list algorithm` shows it."""

    name: str
    facts: dict[str, str]
    """What it says of itself, by the keys `FACTS`."""
    sections: dict[str, dict[str, object]]
    """Kind of stage -> what it sets there."""


def presets() -> list[Preset]:
    """Our presets, by name.

    Raises:
        ConfigError: a file cannot be read.
    """
    problems: list[str] = []
    out: list[Preset] = []
    for name in names("algorithm"):
        plain = tree.read(shipped("configs/algorithms", f"{name}.yaml"), problems).plain()
        facts = {key: str(plain[key]) for key in FACTS if key in plain}
        out.append(Preset(name, facts, {key: value for key, value in plain.items() if key not in FACTS}))
    if problems:
        raise ConfigError(problems)
    return out


def _file(kind: str, where: str, entry: Node, path: Path, problems: list[str], notes: list[str] | None) -> Path | None:
    """The file that an entry of a recipe names; None, with a problem, where there is none.

    Args:
        kind: key of `paths.KINDS`.
        where: dotted path of the entry.
        path: where the recipe is.
        notes: takes which file was found for a name, unless it lies beside the recipe's folder.
    """
    folder = {"base": "base", "algorithm": "algorithms"}[kind]
    if not isinstance(entry.value, str) or not (_NAME.fullmatch(entry.value) or entry.value.endswith(".yaml")):
        expected = f"expected the name of a file in configs/{folder}/ (without .yaml), or a path that ends in .yaml"
        problems.append(f"{entry.origin}: {where}: {expected}, got {entry.plain()!r}")
        return None
    recipe = path.absolute()
    if entry.value.endswith(".yaml"):
        given = recipe.parent / Path(entry.value).expanduser()
        if given.is_file():
            return given
        problems.append(f"{entry.origin}: {where}: no file {given} (a path is relative to the recipe)")
        return None
    beside = (recipe.parent.parent / folder, recipe.parent / folder)
    found = find(kind, entry.value, beside=beside)
    if found is None:
        known = sorted({*names(kind), *(file.stem for place in beside for file in place.glob("*.yaml"))})
        text = f"no {kind} '{entry.value}'{nearest(entry.value, known)} (known: {', '.join(known) or 'none'})"
        problems.append(f"{entry.origin}: {where}: {text}")
        return None
    if notes is not None and found.line is not None and not found.path.absolute().is_relative_to(beside[0]):
        notes.append(found.line)
    return found.path
