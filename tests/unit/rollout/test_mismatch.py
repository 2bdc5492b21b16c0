"""The gap between sampler and trainer by place, and its bounds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

import pytest
import torch

from tests.support.builders import group
from vlmrl.errors import EngineError
from vlmrl.rollout.mismatch import PLACES, Bounds, gaps, place_of
from vlmrl.types import MediaHandle, Prompt


def showing(*kinds: str) -> Prompt:
    media = tuple(MediaHandle(kind=cast("Any", kind), key=f"{n}", grid_thw=(1, 2, 2), tokens=1) for n, kind in enumerate(kinds))
    return dataclasses.replace(group(["a"]).prompt, media=media)


def test_places_tell_apart_what_stands_in_front_of_an_answer() -> None:
    kinds = [(), ("image",), ("image", "image"), ("video",), ("video", "video", "video"), ("video", "image")]
    assert tuple(place_of(showing(*shown)) for shown in kinds) == PLACES


def test_gaps_and_ratios_are_sums_over_the_sampled_tokens_of_each_place() -> None:
    nan = float("nan")
    trainer = torch.tensor([[-1.0, -2.0, 0.0], [-1.0, -1.0, -1.0], [-3.0, 0.0, 0.0]])
    sampled = torch.tensor([[-1.5, -1.0, nan], [-1.0, -1.0, -1.0], [nan, nan, nan]])
    found = gaps(trainer, sampled, [showing("image"), showing(), showing("video")])
    assert found["sampling/logp_gap/image"] == (1.5, 2.0)
    total, count = found["sampling/ratio/image"]
    assert count == 2
    assert total == pytest.approx(math.exp(0.5) + math.exp(-1.0))
    assert found["sampling/logp_gap/text"] == (0.0, 3.0)
    assert found["sampling/ratio/text"] == (3.0, 3.0)
    assert found["sampling/logp_gap/video"] == (0.0, 0.0), "nothing was sampled there: a step leaves it out"


def test_a_token_that_is_far_apart_leaves_ratios_finite() -> None:
    found = gaps(torch.tensor([[-0.5, -200.0, -1.0]]), torch.tensor([[-150.0, -1.0, -1.0]]), [showing()])
    total, count = found["sampling/ratio/text"]
    assert count == 3
    assert total == pytest.approx(math.exp(20.0) + math.exp(-20.0) + 1.0)
    assert found["sampling/logp_gap/text"][0] == pytest.approx(149.5 + 199.0), "the gap itself is told as it is"


def test_gaps_of_turns_are_apart_up_to_a_number() -> None:
    trainer = torch.tensor([[-1.0, -2.0], [-1.0, -1.0], [-3.0, 0.0], [-1.0, -1.0], [-2.0, -2.0]])
    sampled = torch.tensor([[-1.5, -1.0], [-1.0, -1.25], [-2.0, float("nan")], [-3.0, -3.0], [-3.0, -3.0]])
    found = gaps(trainer, sampled, [showing("image")] * 5, [0, 1, 1, None, 40])
    turns = {name: of for name, of in found.items() if "turn" in name}
    assert turns == {"sampling/turn_gap/0": (1.5, 2.0), "sampling/turn_gap/1": (1.25, 3.0), "sampling/turn_gap/16_on": (2.0, 2.0)}
    assert found["sampling/logp_gap/image"] == (8.75, 9.0), "rows of no turn count too"


def test_bounds_name_the_place_and_what_it_speaks_for() -> None:
    bounds = Bounds(warn=0.02, stop=0.2)
    metrics = {"sampling/logp_gap/text": 1e-6, "sampling/logp_gap/video": 0.05, "sampling/logp_gap": 5.0, "loss": 9.0}
    (text,) = bounds.check(metrics, "here")
    assert "0.05 on average behind a video" in text
    assert "look at pixels, positions and features" in text
    with pytest.raises(EngineError, match=r"step 3: .* 0\.3 behind several images, at most 0\.2"):
        bounds.check({"sampling/logp_gap/images": 0.3, "sampling/logp_gap/text": 0.1}, "step 3")
    assert "weights, kernels" in bounds.check({"sampling/logp_gap/image": 0.1, "sampling/logp_gap/text": 0.1}, "here")[0]


def test_a_gap_that_is_no_number_is_above_every_bound_and_without_bounds_nothing_is() -> None:
    with pytest.raises(EngineError, match="nan behind text alone"):
        Bounds(stop=0.2).check({"sampling/logp_gap/text": float("nan")}, "here")
    assert Bounds().check({"sampling/logp_gap/text": float("nan"), "sampling/logp_gap/image": 99.0}, "here") == []
