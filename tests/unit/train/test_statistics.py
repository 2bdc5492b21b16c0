"""train.statistics: what is logged of a step's rewards and advantages, by hand and against scipy."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from tests.support.builders import group, sample
from vlmrl.train import dist
from vlmrl.train.batch import StepBatch
from vlmrl.train.statistics import MOST_LABELS, advantage_moments, completions, describe, label_key
from vlmrl.types import Sample, ScoredGroup, Scores


def logged(groups: list[list[tuple[float | None, ...]]], adv: list[float]) -> dict[str, float]:
    """What is logged of groups of rollouts with these rewards (a weighs 1, b weighs 0.5)."""
    scored = [
        (
            place,
            ScoredGroup(
                group=group(["x"] * len(rewards), answer_format="think"),
                scores=Scores(columns=("a", "b"), weights=(1.0, 0.5), rewards_GK=tuple(rewards)),
            ),
        )
        for place, rewards in enumerate(groups)
    ]
    return describe(StepBatch.of(scored, baseline=lambda _: None, progress=0.0), torch.tensor(adv, dtype=torch.float64))


def test_share_of_rollouts_that_a_reward_judged() -> None:
    out = logged([[(1.0, None), (None, None)], [(0.0, None), (0.0, None)]], [0.0] * 4)
    assert (out["rewards/a/judged"], out["rewards/b/judged"]) == (0.75, 0.0)
    assert out["rewards/a/mean"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("groups", "adv", "expected"),
    [
        ([[(1.0, 0.0), (1.0, 0.0)], [(0.0, 1.0), (0.0, 1.0)]], [0.0] * 4, 0.0),
        ([[(1.0, 0.0), (1.0, 0.0)], [(0.0, 1.0), (0.0, 0.0)]], [0.0] * 4, 1.0),
        ([[(1.0, 0.0), (1.0, 0.0)], [(0.0, 1.0), (0.0, 1.0)]], [0.2, 0.2, -0.2, -0.2], 2.0),  # compared with other groups
        ([[(1.0, 0.0)], [(0.0, 1.0)]], [0.0, 0.1], 1.0),  # one answer each, against a memory
        ([[(None, None), (None, None)]], [0.0, 0.0], 0.0),
    ],
    ids=["flat", "one differs", "across groups", "single", "unjudged"],
)
def test_groups_with_a_signal(groups, adv, expected) -> None:
    assert logged(groups, adv)["groups_with_signal"] == expected


def test_moments_of_all_and_of_each_task() -> None:
    # [0, 0, 0, 0, 1]: variance 4/25, third moment 12/125, fourth 52/625; so skewness 1.5 and kurtosis 3.25
    adv = torch.tensor([0, 0, 0, 0, 1, -1, 1, -1, 1], dtype=torch.float64)
    task = torch.tensor([0] * 5 + [1] * 4)
    out = advantage_moments(adv, task, ("boxes", "counts"))
    assert out["advantage/skewness/boxes"] == pytest.approx(1.5)
    assert out["advantage/kurtosis/boxes"] == pytest.approx(3.25)
    assert out["advantage/skewness/counts"] == pytest.approx(0.0)
    assert out["advantage/kurtosis/counts"] == pytest.approx(1.0)
    assert out["advantage/skewness"] == pytest.approx(stats.skew(adv.numpy()))
    assert out["advantage/kurtosis"] == pytest.approx(stats.kurtosis(adv.numpy(), fisher=False))


def test_one_task_has_no_parts_and_equal_advantages_no_moments() -> None:
    zero = advantage_moments(torch.zeros(4), torch.zeros(4, dtype=torch.int64), ("boxes",))
    assert zero == {"advantage/skewness": 0.0, "advantage/kurtosis": 0.0}


THOUGHT, NONE = "<think>red</think><answer>red</answer>", "<think>\n\n</think><answer>red</answer>"


def labelled(**meta: object) -> Sample:
    return sample(meta=meta)


def answered(texts: list[str], **meta: object) -> tuple[int, ScoredGroup]:
    rewards = tuple((1.0,) for _ in texts)
    scores = Scores(columns=("a",), weights=(1.0,), rewards_GK=rewards)
    return 0, ScoredGroup(group=group(texts, of=labelled(**meta), answer_format="think_or_not"), scores=scores)


def test_think_rate_by_what_rows_say_of_themselves() -> None:
    groups = [answered([THOUGHT, NONE], category="easy"), answered([THOUGHT, THOUGHT], category="hard"), answered([NONE], category="easy")]
    groups.append(answered([THOUGHT]))  # a row that says nothing counts in the whole
    out = completions(groups, "category")
    assert {name: value for name, value in out.items() if name.startswith("completions/think_rate")} == {
        "completions/think_rate": pytest.approx(4 / 6),
        "completions/think_rate/easy": pytest.approx(1 / 3),
        "completions/think_rate/hard": 1.0,
    }
    assert set(completions(groups, None)) == {name for name in out if "think_rate/" not in name}


def test_think_rates_are_those_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [
        [answered([THOUGHT, NONE], category="easy")],
        [answered([NONE, NONE], category="easy"), answered([THOUGHT], category="hard")],
        [],
    ]
    sent: list[object] = []
    monkeypatch.setattr(dist, "gather", lambda value: sent.append(value) or [value])
    for groups in ranks:
        completions(groups, "category")
    monkeypatch.setattr(dist, "gather", lambda _: list(sent))
    out = completions(ranks[0], "category")
    assert (out["completions/think_rate"], out["completions/parse_rate"]) == (2 / 5, 1.0)
    assert (out["completions/think_rate/easy"], out["completions/think_rate/hard"]) == (1 / 4, 1.0)


def test_the_step_logs_think_rates_by_label() -> None:
    scored = [answered([THOUGHT], category="easy"), answered([NONE], category="hard")]
    batch = StepBatch.of(scored, baseline=lambda _: None, progress=0.0)
    adv = torch.zeros(2, dtype=torch.float64)
    assert describe(batch, adv, key="category")["completions/think_rate/easy"] == 1.0
    assert "completions/think_rate/easy" not in describe(batch, adv)


@pytest.mark.parametrize(
    ("rows", "key"),
    [
        ([labelled(category="easy", difficulty="0"), labelled(category="hard", difficulty="4")], "category"),
        ([labelled(category="one", difficulty="0"), labelled(category="one", difficulty="4")], "difficulty"),
        ([labelled(category=str(n), difficulty=str(n % 2)) for n in range(MOST_LABELS + 1)], "difficulty"),
        ([labelled(difficulty=str(n)) for n in range(MOST_LABELS)], "difficulty"),
        ([labelled(difficulty=str(n)) for n in range(MOST_LABELS + 1)], None),
        ([labelled(difficulty=2), labelled(difficulty="2")], None),
        ([labelled(), labelled()], None),
    ],
)
def test_what_think_rates_are_told_apart_by(rows: list[Sample], key: str | None) -> None:
    assert label_key(rows) == key
