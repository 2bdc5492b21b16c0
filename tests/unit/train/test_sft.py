"""Thought dropout of TON (arXiv:2505.16854): exact targets, the rate of the draws, and what they depend on."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.builders import sample as make_sample
from vlmrl.config.schema import SftSection, SourceSection
from vlmrl.errors import ConfigError
from vlmrl.train.stage.sft import check_dropout, drops_thought, target
from vlmrl.types import Sample

SAMPLE = dataclasses.replace(make_sample("3.0 to 5.0", {"time": [3.0, 5.0]}), thought="The red square is at the top left.")


def row(i: int, **meta: object) -> Sample:
    return dataclasses.replace(SAMPLE, id=f"row-{i}", meta=meta)


def cfg(p: float | dict[str, float], **more: object) -> SftSection:
    return SftSection.model_validate(
        {"kind": "sft", "name": "sft", "source": SourceSection(path="x"), "steps": 1, "thought_dropout": p} | more
    )


def test_dropped_thought_is_two_newlines_byte_for_byte() -> None:
    assert target(cfg(1.0), 0, SAMPLE, 0) == "<think>\n\n</think><answer>3.0 to 5.0</answer>"
    assert target(cfg(0.0), 0, SAMPLE, 0) == "<think>The red square is at the top left.</think><answer>3.0 to 5.0</answer>"


def test_answer_only_template_has_no_thought() -> None:
    assert target(cfg(0.0, answer_format="answer_only"), 0, SAMPLE, 0) == "<answer>3.0 to 5.0</answer>"


def test_row_without_a_thought_gets_the_empty_one() -> None:
    plain = dataclasses.replace(SAMPLE, thought=None)
    assert target(cfg(0.0), 0, plain, 0) == "<think>\n\n</think><answer>3.0 to 5.0</answer>"


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8])
def test_rate_is_p_within_three_sigma(p: float) -> None:
    n = 10_000
    drops = sum(drops_thought(cfg(p), 0, row(i), 0) for i in range(n))
    assert abs(drops - n * p) < 3 * (n * p * (1 - p)) ** 0.5


def test_p_zero_never_and_p_one_always() -> None:
    assert not any(drops_thought(cfg(0.0), 0, row(i), 0) for i in range(1000))
    assert all(drops_thought(cfg(1.0), 0, row(i), 0) for i in range(1000))


def test_static_draw_ignores_the_epoch_and_the_other_does_not() -> None:
    rows = [row(i) for i in range(200)]

    def draws(c: SftSection, seed: int, epoch: int) -> list[bool]:
        return [drops_thought(c, seed, one, epoch) for one in rows]

    static, anew = cfg(0.5), cfg(0.5, dropout_per_epoch=True)
    assert draws(static, 0, 0) == draws(static, 0, 1)
    assert draws(anew, 0, 0) != draws(anew, 0, 1)
    assert draws(static, 0, 0) != draws(static, 1, 0)


BY_CATEGORY = {"easy": 1.0, "hard": 0.0}


def test_a_chance_for_each_category() -> None:
    rows = [row(i, category="easy" if i % 2 else "hard", difficulty=str(i)) for i in range(200)]
    check_dropout(rows, cfg(BY_CATEGORY))
    assert [drops_thought(cfg(BY_CATEGORY), 0, one, 0) for one in rows] == [i % 2 == 1 for i in range(200)]
    # the draw itself is the one of a chance for all
    same = cfg({"easy": 0.3, "hard": 0.3})
    assert [drops_thought(same, 0, one, 0) for one in rows] == [drops_thought(cfg(0.3), 0, one, 0) for one in rows]


def test_difficulty_stands_in_for_a_category_that_rows_do_not_state() -> None:
    rows = [row(i, difficulty=i % 2) for i in range(20)]
    chances = cfg({"0": 1.0, "1": 0.0})
    check_dropout(rows, chances)
    assert [drops_thought(chances, 0, one, 0) for one in rows] == [i % 2 == 0 for i in range(20)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row(0, category="easy"), row(1, category="medium")], "'row-1'.*is of category 'medium'"),
        ([row(0, category="easy"), row(1)], "'row-1'.*says neither `category` nor `difficulty`"),
        ([row(0, category="easy")], r"stages.sft.thought_dropout has a chance for \['hard'\], and no row is of that category"),
    ],
)
def test_chances_that_do_not_fit_the_rows_are_refused(rows: list[Sample], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_dropout(rows, cfg(BY_CATEGORY))


def test_a_chance_for_all_asks_nothing_of_the_rows() -> None:
    check_dropout([row(0)], cfg(0.5))
