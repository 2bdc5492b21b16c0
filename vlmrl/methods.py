"""Imports everything that registers a method, and the plug-ins that a recipe names, and gives all registries.

Imported by `cli` and `train` only; this is where torch comes in when a recipe is checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.cards import CORE, OTHERS, argument_line, card
from vlmrl.config.combinations import contradictions, doubts
from vlmrl.config.layers import FACTS, presets
from vlmrl.config.load import flow
from vlmrl.config.methods import SLOTS, check_methods, check_sources, used
from vlmrl.config.schema import Config, RolloutStage
from vlmrl.data.adapters import ADAPTERS
from vlmrl.errors import ConfigError
from vlmrl.extras import METHODS
from vlmrl.plugins import import_package, import_plugins
from vlmrl.protocols import why_not_ahead
from vlmrl.registry import Entry, Registry, load, type_name

PACKAGES = ("vlmrl.algo", "vlmrl.rewards", "vlmrl.sampling", "vlmrl.rollout.strategy", *METHODS.values(), "vlmrl.zoo")
"""Every module in these is imported, so that adding a method is adding a file."""


def registries(plugins: Sequence[str] = ()) -> dict[str, Registry[Any]]:
    """Slot -> registry, after importing our methods and the given plug-ins (modules that register theirs).

    Raises:
        ConfigError: a plug-in cannot be imported.
    """
    for package in PACKAGES:
        import_package(package)
    import_plugins(plugins)
    from vlmrl import protocols
    from vlmrl.algo import registries as algo
    from vlmrl.algo.constraint import constraint

    found: list[Registry[Any]] = [
        algo.advantage,
        algo.reweight,
        algo.credit,
        algo.policy_loss,
        algo.group_loss,
        algo.importance_correction,
        algo.auxiliary_loss,
        algo.reducer,
        algo.kl_estimator,
        algo.reward_shaping,
        algo.rollout_filter,
        constraint,
        protocols.reward,
        protocols.sampler,
        protocols.budget,
        protocols.strategy,
        protocols.environment,
    ]
    return {registry.slot: registry for registry in found}


def method_problems(config: Config, ask: Callable[[Config], Mapping[str, Registry[Any]]] | None = None) -> list[str]:
    """Every wrong name of a method, answer type or adapter, every wrong argument, and combinations that are refused; for
    `config.load.load(also=...)`. Plug-ins that cannot be imported are among them, and the rest is checked without them.
    `ask` gives the registries that a recipe is checked against, once its plug-ins are imported."""
    try:
        import_plugins(config.plugins)
    except ConfigError as error:
        return error.problems + _problems(config, registries())
    return _problems(config, registries() if ask is None else ask(config))


def method_doubts(config: Config, found: Mapping[str, Registry[Any]] | None = None) -> list[str]:
    """Combinations of methods that are allowed and pointed out, and a wording of the prompt that asks for another form of answer."""
    template, formats = config.data.prompt, [stage.answer_format for stage in config.stages]
    unasked = [] if template is None else load("vlmrl.data.unasked:unasked_forms")(template, formats)
    return [*doubts(config, registries(config.plugins) if found is None else found), *(f"data.prompt: {text}" for text in unasked)]


def require_methods(config: Config, ask: Callable[[Config], Mapping[str, Registry[Any]]] | None = None) -> Mapping[str, Registry[Any]]:
    """Pass 2 as training needs it: the registries, after every name of the config has been checked against them.

    Raises:
        ConfigError: with every wrong name and argument.
    """
    found = registries(config.plugins) if ask is None else ask(config)
    problems = _problems(config, found)
    if problems:
        raise ConfigError(problems)
    return found


def _problems(config: Config, found: Mapping[str, Registry[Any]]) -> list[str]:
    from vlmrl.rewards.run.here import isolated

    return [
        *check_methods(config, found),
        *_worded(config),
        *check_sources(config, {"answer_type": ANSWER_TYPES, "adapter": ADAPTERS}),
        *contradictions(config, found),
        *_sampled_ahead(config, found),
        *_not_installed(config, found),
        *isolated(used(config), found["reward"]),
    ]


def _worded(config: Config) -> list[str]:
    # by its name: it needs jinja2
    problem = None if config.data.prompt is None else load("vlmrl.data.wording:prompt_problem")(config.data.prompt)
    return [] if problem is None else [f"data.prompt: {problem}"]


def _not_installed(config: Config, found: Mapping[str, Registry[Any]]) -> list[str]:
    """Environments that need something that is not there, in the words of each."""
    named = [(where, method.name) for where, slot, method in used(config) if slot == "environment"]
    entries = [(where, found["environment"].get(name)) for where, name in named if name in found["environment"].names()]
    missing = [(where, entry.name, entry.extra.get("missing", lambda: None)()) for where, entry in entries]
    return [f"{where}: environment '{name}': {text}" for where, name, text in missing if text is not None]


def _sampled_ahead(config: Config, found: Mapping[str, Registry[Any]]) -> list[str]:
    """Strategies that cannot be sampled ahead, of stages that do so. Wrong names and arguments are reported elsewhere."""
    out: list[str] = []
    for stage in config.stages:
        if not isinstance(stage, RolloutStage) or not stage.rollout.staleness:
            continue
        method = stage.rollout.strategy
        try:
            why = why_not_ahead(found["strategy"].bind(method.name, method.arguments)())
        except (KeyError, TypeError, ValueError):
            continue
        out += [f"stages.{stage.name}.{why}"] if why else []
    return out


def by_card(slot: str, registry: Registry[Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The methods of a slot under their heads, the core first; a head without a method is left out."""
    methods = [described(slot, registry.get(name)) for name in registry.names()]
    parts = [(CORE, [m for m in methods if m["card"]["core"]]), (OTHERS, [m for m in methods if not m["card"]["core"]])]
    return [(head, part) for head, part in parts if part]


def described(slot: str, entry: Entry[Any]) -> dict[str, Any]:
    """What `vlmrl list` shows of a method, as JSON values. An argument without `default` must be given."""
    known = card(slot, entry.name)
    return {
        "name": entry.name,
        "summary": entry.summary,
        "paper": entry.paper,
        "proposed": entry.proposed,
        "needs": list(entry.extra.get("needs", ())),
        "arguments": [
            {"name": p.name, "type": type_name(p.annotation), **({} if p.required else {"default": p.default})}
            for p in entry.parameters.values()
        ],
        "card": known.values() | {"evidence": known.evidence, "said": known.said},
    }


def papers(found: Mapping[str, Registry[Any]]) -> str:
    """Markdown with a table of methods and sources per slot; `docs/papers.md` is this of all slots."""
    out = [
        "<!-- Written by: vlmrl list --papers > docs/papers.md -->",
        "# Methods and their sources",
        "",
        "What a recipe can name, slot by slot. A parameter without a default must be given. *Needs* are inputs beyond the usual ones; a",
        "method says so when the run does not provide them. What is ours in a method is stated at the top of its file; where a part had",
        "to be guessed, the name ends in `_proposed`.",
        "",
        "*Read* is the best source that was read: `code` (of the authors, or of a library that offers the method), `text` of the paper,",
        "`notes` of others, or at most the `abstract`. *Evidence* is what stands behind the method here: a claim that was measured",
        "(`docs/benchmarks/claims.md`), a test that finds the same numbers as another trainer, a kit of `docs/reproduce/`, recipes; and",
        "when it pays, where that is known, and why a guess stays.",
    ]
    where = {slot: f"In a stage of a recipe: `{field}`." for field, slot in SLOTS.items()}
    where |= {"strategy": "In a stage of a recipe: `rollout.strategy`."}
    where["environment"] += " On the command line: `vlmrl tools env`."
    for slot, registry in found.items():
        out += ["", f"## {slot}", "", where[slot]]
        for head, methods in by_card(slot, registry):
            columns = ("name", "what it does", "source", "read", "evidence", "parameters", "needs")
            out += ["", head, "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *map(_markdown_row, methods)]
    return "\n".join(out) + "\n"


def listed_presets() -> list[dict[str, Any]]:
    """What `vlmrl list algorithm` shows of each preset, as JSON values. `sets` holds what it sets in a stage of each kind."""
    return [{"name": one.name, **{key: one.facts.get(key, "") for key in FACTS}, "sets": one.sections} for one in presets()]


def setting_lines(preset: Mapping[str, Any]) -> list[str]:
    """What a preset sets, as lines of a recipe: `beta: 0.04`. Those of other stages than GRPO begin with
    the kind."""
    return [
        f"{'' if kind == 'grpo' else f'{kind}: '}{key}: {flow(value)}"
        for kind, settings in preset["sets"].items()
        for key, value in settings.items()
    ]


def preset_table() -> str:
    """Markdown with a table of the presets; it stands in `docs/methods.md`."""
    out = ["| `algorithm:` | it sets | what for | not in it |", "|---|---|---|---|"]
    for preset in listed_presets():
        sets = "<br>".join(f"<code>{line}</code>" for line in setting_lines(preset))
        out.append(_cells(f"`{preset['name']}`: {preset['title']}, {_linked(preset['paper'])}", sets, preset["for"], preset["without"]))
    return "\n".join(out) + "\n"


PAPERS = Path(__file__).parent / "papers.yaml"
IN, NOT_IN, OUT_OF_SCOPE = "in", "not in", "out of scope"


def paper_list() -> dict[str, Any]:
    """What `vlmrl list --papers --json` shows: every paper of `papers.yaml` with its status, the methods that a recipe names for it and, as
    `why`, what of it is missing or why it is not in; and how many of those in scope are in."""
    out: list[dict[str, Any]] = []
    for group in yaml.safe_load(PAPERS.read_text(encoding="utf-8")):
        beyond = group.get("out_of_scope")
        for paper in group["papers"]:
            methods, why = paper.get("methods", []), paper.get("why", beyond)
            status = OUT_OF_SCOPE if beyond else IN if methods else NOT_IN
            out.append({"title": paper["title"], "class": group["class"], "status": status, "methods": methods, "why": why})
    counted = [paper for paper in out if paper["status"] != OUT_OF_SCOPE]
    return {"in_scope": len(counted), "in": sum(paper["status"] == IN for paper in counted), "papers": out}


def _markdown_row(method: Mapping[str, Any]) -> str:
    name = f"`{method['name']}`" + (" (part of it is our guess)" if method["proposed"] else "")
    parameters = "<br>".join(f"`{argument_line(a)}`" for a in method["arguments"])
    known = method["card"]
    needs = ", ".join(f"`{n}`" for n in method["needs"])
    return _cells(name, method["summary"], _linked(method["paper"] or ""), known["read"] or "", known["said"], parameters, needs)


def _linked(paper: str) -> str:
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", paper)


def _cells(*cells: str) -> str:
    """A row of a table in Markdown."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
