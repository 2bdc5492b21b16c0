"""benchmarks/claims/recorder.py and mechanisms.py: what is recorded comes back, and mechanisms by hand."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks.claims import mechanisms
from benchmarks.claims.recorder import claims_recorder, groups_file, read_steps
from benchmarks.common import BenchmarkError
from tests.support.builders import GivenInputs
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.extras.study.plan import RUN


def inputs(rewards, *, own=None, tasks=None, group=None, progress: float = 0.0, column: str = "iou") -> AdvantageInputs:
    """Groups given as lists of rewards; `own`: for each row whether the policy sampled it."""
    flat = [value for rows in rewards for value in rows]
    groups = [k for k, rows in enumerate(rewards) for _ in rows]
    count = len(flat)
    of_group = tasks or [0] * len(rewards)
    rewards_NK = torch.tensor(flat, dtype=torch.float64)[:, None]
    return GivenInputs(
        reward_N=rewards_NK[:, 0],
        rewards_NK=rewards_NK,
        valid_N=~rewards_NK[:, 0].isnan(),
        group_N=torch.tensor(groups),
        task_N=torch.tensor([of_group[k] for k in groups]),
        on_policy_N=torch.tensor(own or [True] * count),
        length_N=torch.ones(count, dtype=torch.int64),
        columns=(column,),
        tasks=tuple(f"t{k}" for k in range(max(of_group) + 1)),
        weights_K=torch.ones(1, dtype=torch.float64),
        progress=progress,
    )


def record(x: AdvantageInputs) -> None:
    assert claims_recorder(x.rewards_NK, x.valid_N, x) is x.rewards_NK


def test_what_is_recorded_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = groups_file(tmp_path / "plain-s0")
    monkeypatch.setenv(RUN, str(tmp_path / "plain-s0"))
    first = inputs([[0.25, 1.0], [math.nan, 0.5]], own=[True, False, True, True])
    record(inputs([[0.9, 0.9]], progress=0.5))
    record(first)
    record(inputs([[0.1, 0.7]], progress=0.5))  # a resumed run did the step again: this one counts
    found = read_steps(path, 2, {"iou": 2.0})
    assert found[0].rewards_NK.nan_to_num(-1).tolist() == first.rewards_NK.nan_to_num(-1).tolist()
    assert found[0].on_policy_N.tolist() == [True, False, True, True]
    assert found[0].reward_N.nan_to_num(-1).tolist() == [0.5, 2.0, -1, 1.0]
    assert found[1].rewards_NK[:, 0].tolist() == [0.1, 0.7]


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = groups_file(tmp_path / "plain-s0")
    monkeypatch.setenv(RUN, str(tmp_path / "plain-s0"))
    record(inputs([[0.0, 1.0]]))
    with path.open("a") as file:
        file.write('\n{"progress": 0.5, "rewa')
    record(inputs([[0.0, 0.5]], progress=0.5))
    assert [x.reward_N.tolist() for x in read_steps(path, 2, {"iou": 1.0})] == [[0.0, 1.0], [0.0, 0.5]]
    with pytest.raises(BenchmarkError, match="2 steps, not 3"):
        read_steps(path, 3, {"iou": 1.0})
    with pytest.raises(BenchmarkError, match="no weight"):
        read_steps(path, 2, {"other": 1.0})
    with pytest.raises(BenchmarkError, match="0 steps, not 2"):
        read_steps(tmp_path / "missing", 2, {})


def test_a_recorder_without_a_file_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUN, raising=False)
    with pytest.raises(ValueError, match=RUN):
        record(inputs([[0.0, 1.0]]))


def test_rows_of_flat_groups_are_not_live() -> None:
    x = inputs([[1.0, 1.0], [0.0, 1.0]])
    assert mechanisms.live(torch.tensor([0.0, 0.0, -1.0, 1.0]), x).tolist() == [False, False, True, True]
    assert mechanisms.mixed_groups([x, inputs([[0.5, 0.5]])]) == pytest.approx(1 / 3)


def test_moments_by_hand() -> None:
    # -1, -1, 2: second moment 2, third moment 2
    assert mechanisms.skewness(torch.tensor([-1.0, -1.0, 2.0]).double()) == pytest.approx(2 / 2**1.5)
    assert mechanisms.skewness(torch.ones(3).double()) == 0
    # two values at the quartiles of the normal law, which are those of (i - 0.5) / 2
    quartile = 0.6744897501960817
    assert mechanisms.wasserstein_to_normal(torch.tensor([quartile, -quartile])) == pytest.approx(0, abs=1e-6)
    assert mechanisms.wasserstein_to_normal(torch.tensor([quartile + 1, -quartile + 1])) == pytest.approx(1, abs=1e-6)


def test_a_ground_truth_row_pushes_good_answers_down_and_shaping_repairs_some() -> None:
    # sampled 0.1 .. 0.5 and a truth of 1: the mean is 0.4286 with it and 0.3333 without, so 0.4 is pushed down
    group = [0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 1.0]
    x = inputs([group, group], own=[*([True] * 6), False] * 2)
    raw = mechanisms.bound("grpo")(x)
    assert mechanisms.pushed_down(raw, x) == (2, 6)
    found = mechanisms.ground_truth_row([x], "iou")
    assert found["good rows pushed down, raw"] == pytest.approx(1 / 3)
    assert found["good rows pushed down, raw - shaped"] == pytest.approx(
        found["good rows pushed down, raw"] - found["good rows pushed down, shaped"]
    )
    # the shaped truth is 0.8 + 0.01 ln 1.2 = 0.8018, and what lies below is stretched downwards: 1 stands out less
    shaped = mechanisms.shaped(x, "iou").reward_N
    assert float(shaped[6]) == pytest.approx(0.8 + 0.01 * math.log(1.2))
    assert found["|skewness|, shaped"] < found["|skewness|, raw"]
    assert mechanisms.ground_truth_row([dataclasses.replace(x, on_policy_N=torch.ones(14, dtype=torch.bool))], "iou") == {}


def test_sampled_rewards_by_hand() -> None:
    x = inputs([[0.2, 0.9, 1.0]], own=[True, True, False])
    assert mechanisms.sampled_rewards([x], "iou") == {
        "sampled iou, first steps": pytest.approx(0.55),
        "sampled iou > 0.8, first steps": pytest.approx(0.5),
    }


def test_unevenness_by_hand() -> None:
    x = inputs([[0.0, 1.0], [0.0, 1.0], [1.0, 1.0]], tasks=[0, 1, 1])
    # means of |A| 1 and 3 over live rows: deviation 1 over mean 2
    assert mechanisms.unevenness(torch.tensor([-1.0, 1.0, -3.0, 3.0, 0.0, 0.0]), x) == pytest.approx(0.5)
    assert mechanisms.unevenness(torch.tensor([-1.0, 1.0]), inputs([[0.0, 1.0]])) is None


def test_ranks_over_a_task_can_push_a_right_answer_down_and_z_scores_cannot() -> None:
    easy, harder = [1.0] * 7 + [0.0], [1.0] * 6 + [0.0, 0.0]
    x = inputs([easy, *([harder] * 9), [0.0, 1.0, 2.0, 3.0] * 2], tasks=[*([0] * 10), 1])
    found = mechanisms.several_tasks([x])
    assert found["good rows pushed down, GRPO"] == 0
    assert found["good rows pushed down, G2RPO"] > 0
    assert found["distance to normal, GRPO - G2RPO"] == pytest.approx(
        found["distance to normal, GRPO"] - found["distance to normal, G2RPO"]
    )
    assert mechanisms.several_tasks([inputs([[0.0, 1.0]])]) == {}


def test_flipped_signs_by_hand() -> None:
    # ten rows with mean 0.35: the first part of five is 0, 0, 0, 0.3, 1 and the second 0.3, 0.4, 0.5, 0.5, 0.5
    group = [0.0, 0.0, 0.0, 0.3, 1.0, 0.3, 0.4, 0.5, 0.5, 0.5]
    found = mechanisms.small_groups([inputs([group])])
    # mean of four: (0.075) flips 0.3; (0.425) flips 0.4, of eight rows
    assert found["flipped signs, mean"] == pytest.approx(2 / 8)
    # mean of five: 0.26 flips 0.3 of the first four; 0.44 flips 0.4
    assert found["flipped signs, mean of one more"] == pytest.approx(2 / 8)
    # median of five: 0 flips 0.3; 0.5 flips 0.4; the pivots do not train
    assert found["flipped signs, median"] == pytest.approx(2 / 8)
    assert found["flipped signs, mean - median"] == pytest.approx(0)
    assert mechanisms.small_groups([inputs([group[:6]])]) == {}


def test_a_recorded_line_is_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN, str(tmp_path / "g"))
    record(inputs([[math.nan, 0.5]]))
    line = json.loads(groups_file(tmp_path / "g").read_text().strip())
    assert line["rewards"] == [[None], [0.5]]
    assert line["columns"] == ["iou"]
