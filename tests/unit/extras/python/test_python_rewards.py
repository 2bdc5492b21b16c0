"""extras.python.rewards: functions of three forms score alike, find their way into a recipe, and are known by their source."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from tests.support.builders import group, sample
from vlmrl.errors import ConfigError
from vlmrl.extras.python import given
from vlmrl.extras.python.rewards import form_of, of_recipe, source_digest
from vlmrl.protocols import RewardContext
from vlmrl.protocols import reward as registry
from vlmrl.rewards.exact import exact
from vlmrl.rewards.run.place import in_worker, place
from vlmrl.types import Group
from vlmrl.zoo.rewards.run import foreign  # noqa: F401 (registers `python`)

GROUP = group(["4", "5", "", "of 4 dots"], sample("4", id="row"))


def importable(completions, answer, **columns) -> list[float]:
    """Of a module, so that a worker finds it."""
    return [float(gold in one[0]["content"]) for one, gold in zip(completions, answer, strict=True)]


def forms(bonus: float) -> dict[str, Any]:
    """The same score in three forms, as closures."""

    def ours(group: Group, ctx: RewardContext) -> list[float | None]:
        return [float(group.prompt.sample.answer in r.text) + bonus for r in group.rollouts]

    def trl(completions, answer, **columns):
        return [float(gold in one[0]["content"]) + bonus for one, gold in zip(completions, answer, strict=True)]

    def verl(data_source, solution_str, ground_truth, extra_info=None):
        return float(ground_truth in solution_str) + bonus

    return {"ours": ours, "trl": trl, "verl": verl}


def scores(method: dict[str, Any], of: Group = GROUP) -> list[float | None]:
    """What the reward of a recipe gives in this process."""
    arguments = {key: value for key, value in method.items() if key not in ("name", "label", "weight", "isolate")}
    return list(place(method["name"], arguments, isolate=method.get("isolate"), pool=None)(of, RewardContext()))


@pytest.mark.parametrize("form", ["ours", "trl", "verl"])
def test_three_forms_score_alike(form: str):
    (method,), (note,) = of_recipe(forms(0.25)[form])
    assert (method["form"], method["label"], method["isolate"]) == (form, form, False)
    assert scores(method) == [1.25, 0.25, 0.25, 1.25]
    assert note == f"reward '{form}' runs in this process, without a deadline: no module that a worker could import has it"


def test_names_weights_and_mappings_stand_beside_functions():
    """Also a registered function, which has a name, and two functions of one name."""
    brief, other = (lambda completions: [0.0] * len(completions)), functools.partial(forms(0)["verl"], extra_info={})
    methods, notes = of_recipe(
        [brief, (brief, 2), ("format", 0.1), "exact", (exact, 0.5), {"name": "format", "weight": 1, "label": "f"}, other]
    )
    assert [(m["name"], m.get("label"), m.get("weight")) for m in methods] == [
        ("python", "reward", None),
        ("python", "reward_2", 2.0),
        ("format", None, 0.1),
        ("exact", None, None),
        ("exact", None, 0.5),
        ("format", "f", 1),
        ("python", "verl", None),
    ]
    assert notes == [
        "rewards 'reward', 'reward_2', 'verl' run in this process, without a deadline: no module that a worker could import has them"
    ]
    assert of_recipe("exact") == ([{"name": "exact"}], [])
    assert of_recipe(("exact", 2)) == ([{"name": "exact", "weight": 2.0}], [])


def test_a_function_of_a_module_is_named_by_its_place_and_runs_in_a_worker():
    methods, notes = of_recipe(importable)
    assert methods == [{"name": "python", "label": "importable", "function": f"{__name__}:importable", "form": "trl"}]
    assert notes == []
    assert in_worker(registry.get("python"), methods[0].get("isolate"))
    assert scores(methods[0] | {"isolate": False}) == [1.0, 0.0, 0.0, 1.0]


def test_options_and_the_form_may_be_said():
    """A function whose parameters tell nothing; texts in place of messages."""

    def odd(texts, truth, scale):
        return [scale * (text == truth) for text in texts]

    with pytest.raises(ConfigError, match=r"reward 'odd': parameters \(texts, truth, scale\) are of no known form: \(group, ctx\) is ours"):
        of_recipe(odd)

    def plain(completions, answer, scale):
        return odd(completions, answer[0], scale)

    (method,), _ = of_recipe({"function": plain, "chat": False, "options": {"scale": 3}, "weight": 0.5})
    assert (method["weight"], method["form"]) == (0.5, "trl")
    assert scores(method) == [3, 0, 0, 0]


def test_a_coroutine_runs_where_a_loop_runs_already():
    """As in the cell of a notebook, where rewards run in the kernel's process."""

    async def slow(completions, answer):
        await asyncio.sleep(0)
        return [float(len(one[0]["content"])) for one in completions]

    (method,), _ = of_recipe(slow)

    async def cell() -> list[float | None]:
        return scores(method)

    assert asyncio.run(cell()) == scores(method) == [1, 1, 0, 9]


def test_forms_by_parameters():
    assert form_of(lambda **kwargs: [], "f") == "trl"
    assert form_of(lambda prompts, completions: [], "f") == "trl"
    assert form_of(lambda reward_inputs: [], "f") == "easyr1"
    assert form_of(lambda group, ctx, *, limit=3: [], "f") == "ours"


@pytest.mark.parametrize("wrong", [3, {"exact"}, [3], [("exact",)], None])
def test_what_is_no_reward_is_said(wrong: Any):
    with pytest.raises(ConfigError, match=r"reward: got .*; give a function, the name of a reward"):
        of_recipe(wrong)


def test_a_digest_is_of_the_source_and_of_what_it_holds():
    """The same text and values give the same one; another bonus, another default or another line give others."""
    first, again, other = forms(0.25)["trl"], forms(0.25)["trl"], forms(0.5)["trl"]
    assert source_digest(first) == source_digest(again) != source_digest(other)
    spaces: list[dict[str, Any]] = []
    for line in ("return [1.0]", "return [2.0]", "return [1.0]"):
        spaces.append({})
        exec(f"def f(completions, limit=3):\n    {line}", spaces[-1])
    digests = [source_digest(space["f"]) for space in spaces]
    assert digests[0] == digests[2] != digests[1]
    spaces[2]["f"].__defaults__ = (4,)
    assert source_digest(spaces[2]["f"]) != digests[0]
    assert source_digest(functools.partial(first, x=1)) != source_digest(functools.partial(first, x=2))
    assert source_digest(lambda completions: [1]) != source_digest(lambda completions: [2])


def test_a_later_function_of_equal_source_takes_the_place_of_the_first():
    """What it holds beyond plain values is another object: a recipe that was loaded before calls the new one."""

    def reward(seen: list[str]):
        def look(completions):
            seen.append("called")
            return [0.0] * len(completions)

        return look

    old: list[str] = []
    new: list[str] = []
    (first,), _ = of_recipe(reward(old))
    scores(first)
    (second,), _ = of_recipe(reward(new))
    scores(second)
    assert first == second
    assert (old, new) == (["called"], ["called"])


def test_a_recipe_of_another_process_says_what_to_do():
    with pytest.raises(ConfigError, match=r"reward 'brief' is a function of a script or a notebook: make the same call of vlmrl\.grpo"):
        getattr(given, "brief@0123")
    with pytest.raises(AttributeError):
        _ = given.brief
