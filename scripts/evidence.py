"""Counts what stands behind each method: python -m scripts.evidence writes vlmrl/evidence.json.

A method is core if it is the default of a slot; if a shipped recipe or a claim names it and no part of it is a guess; or if TRL or verl
offer it, by the table of docs/glossary.md. Kits are recipes of docs/reproduce. A recipe also names what a comment of it gives as a setting
(`constraints: [{name: entropy_band}]`).
"""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.cards import EVIDENCE
from vlmrl.config.load import load
from vlmrl.config.methods import SLOTS
from vlmrl.defaults import DEFAULTS
from vlmrl.methods import registries

ROOT = Path(__file__).resolve().parent.parent
RECIPES = ROOT / "configs" / "recipes"
TRL_TEST = ROOT / "tests" / "agreement" / "test_trl.py"
SLOT_OF: Mapping[str, str] = {**SLOTS, "strategy": "strategy"}
COMPARED = ("advantage", "policy_loss", "reducer", "kl_estimator", "importance_correction")
"""Slots of what tests/agreement/test_trl.py compares."""
Method = tuple[str, str]
"""(slot, name)"""


def named(stage: Mapping[str, Any]) -> Iterator[Method]:
    """Every method of a stage of a recipe, given as plain values."""
    for field, slot in SLOT_OF.items():
        value = stage.get(field) if field != "strategy" else (stage.get("rollout") or {}).get(field)
        for method in [value] if isinstance(value, dict) else value or []:
            yield slot, method["name"]


def in_comments(text: str) -> Iterator[Method]:
    """Methods that comments of a recipe give as a setting."""
    for line in text.splitlines():
        for field, name in re.findall(r"(\w+): \[?\{name: (\w+)", line.partition("#")[2]):
            if field in SLOT_OF:
                yield SLOT_OF[field], name


def recipes() -> dict[Method, set[str]]:
    """Method -> shipped recipes that use it, or give it as a setting."""
    out: dict[Method, set[str]] = defaultdict(set)
    for path in sorted(RECIPES.glob("*.yaml")):
        stages = load(path, ["data.root=."]).config.model_dump(mode="json")["stages"]
        for method in [*(m for stage in stages for m in named(stage)), *in_comments(path.read_text(encoding="utf-8"))]:
            out[method].add(path.stem)
    return out


def claims() -> tuple[set[Method], dict[Method, dict[str, str]]]:
    """Methods of the arms of claims, and method -> {claim that is about it: verdict}."""
    from benchmarks.claims.regimes import REGIMES
    from benchmarks.claims.studies import Scale, arm_stage, stages_of
    from benchmarks.claims.table import CLAIMS

    results = json.loads((ROOT / "docs" / "benchmarks" / "claims.json").read_text(encoding="utf-8"))["claims"]
    about: dict[Method, dict[str, str]] = defaultdict(dict)
    for claim in CLAIMS.values():
        for method in claim.methods:
            slot, _, name = method.partition(" ")
            about[slot, name][claim.id] = results[claim.id]["verdict"]
    in_arms: set[Method] = set()
    for regime in REGIMES.values():
        rl = stages_of(regime, Scale())["rl"]
        in_arms |= {m for arm in regime.arms for m in named(arm_stage(regime, arm, rl, Scale()))}
    return in_arms | set(about), about


def kits() -> set[str]:
    """Names of scripts/reproduce.sh."""
    listed = re.search(r"^#   NAME: (.+)$", (ROOT / "scripts" / "reproduce.sh").read_text(encoding="utf-8"), re.M)
    assert listed is not None, "scripts/reproduce.sh lists its names"
    return set(listed[1].split(", "))


def offered() -> dict[Method, list[str]]:
    """Method -> TRL, verl or both, by the glossary."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").partition("\n## Method names\n")[2].partition("\n## ")[0]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")]
    return {(row[1], row[0]): [who for who, cell in zip(("TRL", "verl"), row[2:4], strict=True) if cell] for row in rows}


def compared() -> set[Method]:
    """Methods whose numbers a test compares with TRL's: members of its tuples. What stands in its dictionaries is TRL's settings."""
    tuples = [node for node in ast.walk(ast.parse(TRL_TEST.read_text(encoding="utf-8"))) if isinstance(node, ast.Tuple)]
    words = {member.value for node in tuples for member in node.elts if isinstance(member, ast.Constant)}
    return {(slot, name) for slot in COMPARED for name in registries()[slot].names() if name in words}


def evidence() -> dict[str, dict[str, dict[str, Any]]]:
    """Slot -> name -> what was counted, without empty facts; methods of which nothing was counted are left out."""
    found, used, (claimed, verdicts), reproduced = registries(), recipes(), claims(), kits()
    defaults, offers, same = {(SLOT_OF[field], name) for field, name in DEFAULTS.items()}, offered(), compared()
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for slot, registry in found.items():
        for name in registry.names():
            method = (slot, name)
            if not registry.get(name).function.__module__.startswith("vlmrl."):
                continue
            why = {"default": method in defaults, "recipe": method in used, "claim": method in claimed}
            core = [] if registry.get(name).proposed else [*(key for key, true in why.items() if true), *offers.get(method, [])]
            facts = {
                "core": core,
                "claims": verdicts.get(method, {}),
                "kits": sorted(used.get(method, set()) & reproduced),
                "recipes": sorted(used.get(method, set())),
                "agrees": ["TRL"] if method in same else [],
            }
            if any(facts.values()):
                out.setdefault(slot, {})[name] = {key: value for key, value in facts.items() if value}
    return out


def written(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """What was counted as the text of vlmrl/evidence.json: a line per method."""
    slots = [
        f"{json.dumps(slot)}: {{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in methods.items()) + "\n }"
        for slot, methods in found.items()
    ]
    return "{\n " + ",\n ".join(slots) + "\n}\n"


if __name__ == "__main__":
    fs.write_text(EVIDENCE, written(evidence()))
