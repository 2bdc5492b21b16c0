"""The model card in Markdown, of facts. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from vlmrl.evals.score.table import Cells, markdown
from vlmrl.extras.publish.facts import UNKNOWN, Facts

CARD = "README.md"
RECIPE = "recipe.yaml"
_MEDIA = ("min_pixels", "max_pixels", "video_total_pixels", "fps", "min_frames", "max_frames")


def card(facts: Facts, *, repo: str, licence: str) -> str:
    """The whole card.

    Args:
        repo: `owner/name`.
        licence: of these weights, as the hub spells it.
    """
    parts = [
        _front(facts, licence),
        f"# {repo.split('/')[-1]}\n",
        _intro(facts),
        "## How to use\n\n" + _use(facts, repo),
        "## What was measured\n\n" + _measured(facts),
        "## What was not measured\n\n" + "".join(f"- {line}\n" for line in facts.gaps),
        "## Data\n\n" + _data(facts),
        "## Recipe\n\n" + _recipe(facts),
        "## Licence\n\n" + _licence(facts, licence),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _front(facts: Facts, licence: str) -> str:
    values: dict[str, Any] = {
        "license": licence,
        "library_name": "transformers",
        "pipeline_tag": "image-text-to-text",
        "tags": ["vlmrl", *sorted(set(_kinds(facts)))],
    }
    if facts.base_model is not None and "/" in facts.base_model and facts.base_model != "toy":
        values |= {"base_model": facts.base_model, "base_model_relation": "finetune"}
    return f"---\n{yaml.safe_dump(values, sort_keys=False)}---\n"


def _kinds(facts: Facts) -> Iterable[str]:
    return (str(stage.get("kind")) for stage in (facts.recipe or {}).get("stages", []))


def _intro(facts: Facts) -> str:
    base = f"`{facts.base_model}`" if facts.base_model else "a base model that is not stated"
    by = f", in stage `{facts.stage}` of the run `{facts.run}`" if facts.run else ""
    made = f"{facts.family}, trained from {base} with [vlmrl](https://pypi.org/project/vlmrl/){by}.\n"
    return made + "".join(f"\n{line}" for line in facts.said) + ("\n" if facts.said else "")


def _use(facts: Facts, repo: str) -> str:
    name = repo.split("/")[-1]
    out = [f"```sh\nhf download {repo} --local-dir {name}\n"]
    out.append(f'vlmrl serve {name} --ask "..." --image picture.png --out answer.png\nvlmrl serve {name}\n```\n')
    if not facts.asked:
        return "\n".join([*out, "How prompts were made is not stated in `vlmrl.json`; give `--recipe` and `--answer-type`.\n"])
    asked = facts.asked
    held = "`vlmrl.json` holds the pixels and the prompt of training. With other programs,"
    if "prompt" in asked:
        out.append(f"{held} put a question into this template\n\n```jinja\n{asked['prompt'].strip()}\n```\n")
    else:
        out.append(f"{held} end a question with\n")
        out += [f"> {text}  (answers of type `{kind}`)\n" for kind, text in asked["instructions"].items()]
    media = {name: asked["media"][name] for name in _MEDIA if asked["media"].get(name) is not None}
    out.append(f"and give the processor these limits: `{json.dumps(media)}`.")
    if asked.get("frame"):
        out.append(f"Coordinates in answers: `{asked['frame']}`.")
    if facts.adapter:
        out.append("The weights are merged: no adapter is needed to open them.")
    return "\n".join(out) + "\n"


def _measured(facts: Facts) -> str:
    if not facts.measured:
        return "Nothing.\n"
    out: list[str] = ["Means with 95% intervals over questions.\n"]
    for one in facts.measured:
        out += [f"### {one.title}\n", _table(one.cells), *(f"\n{note}\n" for note in one.notes)]
    return "\n".join(out)


def _table(cells: Cells) -> str:
    return markdown([[cell.replace("\n", " ") for cell in row] for row in cells])


def _data(facts: Facts) -> str:
    if not facts.data:
        return "Not stated.\n"
    rows = [["rows", "stage", "licence"], *([f"`{one.path}`", one.stage, one.licence] for one in facts.data)]
    return _table(rows) + "\n"


def _recipe(facts: Facts) -> str:
    if facts.recipe is None:
        return "Not at hand.\n"
    rows = [["stage", "kind", "steps", "learning rate", "method"]]
    for stage in facts.recipe.get("stages", []):
        optim: Mapping[str, Any] = stage.get("optim") or {}
        cells = (stage.get("name"), stage.get("kind"), stage.get("steps"), optim.get("lr"), ", ".join(_methods(stage)) or "-")
        rows.append([str(cell) for cell in cells])
    versions = ", ".join(f"{name} {value}" for name, value in facts.versions.items())
    return f"{_table(rows)}\n\nEvery value: `{RECIPE}`.{f' Versions: {versions}.' if versions else ''}\n"


def _methods(stage: Mapping[str, Any]) -> Iterable[str]:
    for slot in ("rewards", "advantage", "loss"):
        given = stage.get(slot)
        for one in given if isinstance(given, list) else [given]:
            if isinstance(one, Mapping) and one.get("name"):
                yield f"{slot.removesuffix('s') if slot == 'rewards' else slot} `{one['name']}`"


def _licence(facts: Facts, licence: str) -> str:
    base = facts.base_licence if facts.base_licence != UNKNOWN else "not known to this program; see its page"
    held = [f"`{one.path}`" for one in facts.data if one.licence == UNKNOWN]
    data = f"Licence of {', '.join(held)}: not stated.\n" if held else ""
    return f"These weights: {licence}. The base model's: {base}. {data}\n"
