"""What a method's registration declares, in sentences. The keys are those of `vlmrl.config.combinations` and of the registries."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from scripts.docs_site.marks import plain
from vlmrl.registry import Entry


def _wants(value: dict[str, tuple[str, ...]]) -> str:
    return "Made for " + "; ".join(f"`{field}` {' or '.join(f'`{n}`' for n in names)}" for field, names in value.items()) + "."


def _best(value: float | None) -> str:
    return "What the gold answer earns is not known beforehand." if value is None else f"The gold answer earns {value:g}."


SENTENCES: dict[str, str | Callable[[Any], str]] = {
    "acts_on": lambda v: f"Acts on the {'weight of the divergence (`beta`)' if v == 'beta' else v}.",
    "alternative": lambda v: f"One of several ways to the same end ({plain(v)}): take one of them.",
    "asks": lambda v: f"Prompts ask for an action in the words of the answer type `{v}`.",
    "baseline": lambda v: f"Its baseline is of the kind `{v}`.",
    "before_advantage": "Rows that it drops are left out of the advantage's statistics too.",
    "begins_alike": "May begin alike for every seed.",
    "best": _best,
    "bound": lambda v: f"`{v}` must be at least what the gold answer earns.",
    "compares": "A rollout's number depends on the others of its group.",
    "deterministic": lambda v: "" if v else "Does not show the same screens twice: a step that a crash cut off is played anew.",
    "drops_flat_groups": "Drops groups of equal rewards.",
    "for_tasks": "Does something only for the tasks that its arguments name.",
    "foreign": "Calls a function of yours.",
    "form_only": "Looks at the form alone: must weigh less than the other rewards together.",
    "imports": lambda v: "Imports " + ", ".join(f"`{one}`" for one in v) + ".",
    "injects_rows": "Adds rows that the policy did not sample.",
    "lacking": "Parts of it need packages that may be missing; `vlmrl list environments` says which.",
    "linear": "Linear for some arguments, and would then cancel under an advantage that divides by a deviation.",
    "min_generations": lambda v: f"Needs `rollout.num_generations` of {v} or more.",
    "min_generations_why": "",
    "missing": "Needs packages or programs that may be missing; `vlmrl check` says which.",
    "monotone": "Strictly monotone: does nothing before an advantage that uses ranks only.",
    "moves_reference": "Its reference moves: takes `beta: 0`.",
    "moves_signs": "The sign of an advantage is not that of the reward less the group's mean.",
    "needs": "",
    "needs_environment": "Reads what an environment gives: the stage needs one.",
    "needs_injected_rows": "For rows that the policy did not sample: the strategy must add some.",
    "needs_updates_per_step": lambda v: f"Without effect below `updates_per_step` {v}, where every ratio is 1.",
    "no_truth": "Knows no gold answer.",
    "old_from_sampler": "Its rows' ratio is not 1 in the first update.",
    "per": lambda v: f"Acts per {v}.",
    "ranks_only": lambda v: "Uses ranks of the summed reward only." if v == "sum" else "Uses ranks of every column only.",
    "reads_answers": "Reads whole answers, tags and all.",
    "remedy": "",
    "remembers": "Has a memory, which is saved with every checkpoint.",
    "rows": "Is played on rows of yours.",
    "sampled_rows_only": "Looks at sampled rows only.",
    "scale": lambda v: f"Divides by a {v}.",
    "scale_over": lambda v: f"Its deviation is that of the {v}, not of a group.",
    "score": lambda v: f"Compares by the score `{v}`.",
    "service": "Asks a service.",
    "shortens": lambda v: f"Pays for short answers: {v}.",
    "signs_only": "Reads the sign of the advantage only.",
    "tasks": "Has tasks of its own (`vlmrl tools env`).",
    "unit": lambda v: f"Drops single {v}s.",
    "unscaled": "Derived for advantages that are not divided by a deviation.",
    "uses_flat_groups": "Learns from groups of equal rewards too: no filter may drop them.",
    "wants": _wants,
    "wants_why": "",
    "weighs_difficulty": "Weighs prompts by their difficulty.",
    "worker": "Runs in a worker process, under a deadline.",
}
"""Key of a registration -> what it says; a function of the value, and nothing where another key says it."""
RULES = {"refuses": "Refused", "doubts": "Pointed out"}
INTERNAL = frozenset({"apply", "measure", "term"})
"""Parts of an implementation, which are no rules."""


def declared(entry: Entry[Any]) -> list[str]:
    """Sentences on what a method declares, Markdown.

    Raises:
        KeyError: a key of the registration that nothing here explains.
    """
    out: list[str] = []
    for key, value in entry.extra.items():
        if key in RULES:
            first = (inspect.getdoc(value) or "").split("\n\n")[0]
            out.append(f"{RULES[key]} when the recipe is checked: {plain(' '.join(first.split())) if first else 'by a rule of its own.'}")
        elif key not in INTERNAL:
            sentence = SENTENCES[key]
            if callable(sentence):
                sentence = "Depends on its arguments: " + f"`{key}`." if callable(value) else sentence(value)
            out.append(sentence)
    if "min_generations_why" in entry.extra:
        at = next(n for n, one in enumerate(out) if "num_generations" in one)
        out[at] = f"{out[at].removesuffix('.')}, {plain(entry.extra['min_generations_why'])}."
    if "wants_why" in entry.extra:
        at = next(n for n, one in enumerate(out) if one.startswith("Made for"))
        out[at] = f"{out[at].removesuffix('.')}: {plain(entry.extra['wants_why'])}."
    return [one for one in out if one]
