"""Learning rates of parts of the model: which parameters, which rates, and what a recipe may say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import runs
from tests.support.tiny import Tiny
from vlmrl.config.schema import Config, validate
from vlmrl.config.section import OptimSection
from vlmrl.errors import ConfigError
from vlmrl.families.qwen_vl import part_of
from vlmrl.policy.load import freeze
from vlmrl.train.adamw import groups_of, make_optimizer
from vlmrl.train.step import learning_rate, rates, set_rates


def optim(**fields: Any) -> OptimSection:
    return OptimSection.model_validate(fields)


def test_groups_of_parts_follow_those_of_the_rest(tiny: Tiny) -> None:
    named = freeze(tiny.policy, ())
    plain = groups_of(named, optim(lr=1e-3, weight_decay=0.1))
    assert [set(group) for group in plain] == [{"params", "weight_decay", "names"}] * 2, "without rates of parts nothing is new"
    found = groups_of(named, optim(lr=1e-3, weight_decay=0.1, parts={"projector": 2e-3, "vision": 1e-4}))
    assert [(group.get("part"), group.get("lr"), group["weight_decay"]) for group in found] == [
        (None, None, 0.1),
        (None, None, 0.0),
        ("vision", 1e-4, 0.1),
        ("vision", 1e-4, 0.0),
        ("projector", 2e-3, 0.1),
        ("projector", 2e-3, 0.0),
    ]
    assert sorted(name for group in found for name in group["names"]) == [name for name, _ in named]
    for group in found:
        assert {part_of(name) for name in group["names"]} == {group.get("part", "language")}
        assert all(p.ndim >= 2 for p in group["params"]) == (group["weight_decay"] > 0)
    freeze(tiny.policy, ())


def test_every_rate_follows_warm_up_and_schedule(tiny: Tiny) -> None:
    cfg = optim(lr=1e-3, parts={"projector": 2e-3, "vision": 1e-4})
    optimizer, _ = make_optimizer(freeze(tiny.policy, ()), cfg)
    for step in range(10):

        def shape(peak: float, step: int = step) -> float:
            return learning_rate(step, 10, peak=peak, schedule="cosine", warmup=0.3)

        set_rates(optimizer, cfg, shape)
        assert rates(optimizer) == {"lr": shape(1e-3), "lr/projector": shape(2e-3), "lr/vision": shape(1e-4)}
    assert rates(make_optimizer(freeze(tiny.policy, ()), optim())[0]) == {"lr": 1e-6}


def test_equal_rates_give_the_bits_of_one_rate(tiny: Tiny) -> None:
    named = [(name, torch.nn.Parameter(p.detach().clone())) for name, p in freeze(tiny.policy, ())]
    results: list[list[torch.Tensor]] = []
    for parts in ({}, {"vision": 1e-3, "projector": 1e-3}):
        own = [(name, torch.nn.Parameter(p.detach().clone())) for name, p in named]
        optimizer, _ = make_optimizer(own, optim(lr=1e-3, weight_decay=0.01, parts=parts))
        draws = torch.Generator().manual_seed(0)
        for _ in range(3):
            for _, p in own:
                p.grad = torch.randn(p.shape, generator=draws)
            optimizer.step()
        results.append([p.detach() for _, p in own])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert not any(torch.equal(a, p) for a, (_, p) in zip(results[0], named, strict=True))


def test_a_part_of_which_nothing_trains_is_an_error(tiny: Tiny) -> None:
    named = freeze(tiny.policy, ("vision",))
    with pytest.raises(ConfigError, match=r"optim\.parts\.vision: nothing of this part trains, only language, projector"):
        groups_of(named, optim(parts={"vision": 1e-4}))
    freeze(tiny.policy, ())


def config(change: Callable[[dict[str, Any]], object]) -> Config:
    raw = runs.small_config(Path("model"), Path("world"), Path("runs"))
    change(raw)
    return Config.model_validate(raw)


def parts(raw: dict[str, Any], **given: float) -> dict[str, Any]:
    raw["stages"][1]["optim"] = {"parts": given}
    return raw


def test_what_a_recipe_may_say() -> None:
    fine = config(lambda raw: parts(raw, projector=1e-4, vision=0))
    assert validate(fine) == []
    assert fine.stages[1].frozen == ("vision",), "named by freeze, and again by a rate of 0"
    assert config(lambda raw: parts(raw, language=0.0)).stages[1].frozen == ("vision", "language")
    assert fine.stages[0].frozen == ()
    (problem,) = validate(config(lambda raw: parts(raw, vision=1e-4)))
    assert problem.startswith("stages[1] (rl): optim.parts.vision (0.0001): freeze names this part too")
    (problem,) = validate(config(lambda raw: parts(raw, language=0, projector=0)))
    assert problem == "stages[1] (rl): freeze and optim.parts leave nothing to train"
    (problem,) = validate(config(lambda raw: (parts(raw, projector=1e-4), raw["model"].update(lora={"rank": 4}))))
    assert "with model.lora only adapters train, and this part has none" in problem
    assert validate(config(lambda raw: (parts(raw, projector=1e-4), raw["model"].update(lora={"rank": 4, "vision": True})))) == []
    (problem,) = validate(config(lambda raw: (parts(raw, language=0), raw["model"].update(lora={"rank": 4}))))
    assert "freeze (vision, language) leaves none of the adapters" in problem
