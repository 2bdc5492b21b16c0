"""Many synchronisations: the tables by hand, and a very small setting from the command to the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rollout import rollout_syncs
from tests.support.command import module

MIB = 2**20


def answer(*logprobs: float, first: int = 1) -> list[list[float]]:
    return [[first, 2, 3], list(logprobs)]


def test_answers_are_compared_up_to_the_first_token_that_differs() -> None:
    assert rollout_syncs.distance(answer(0.0, 0.0, 0.0), answer(0.0, 0.25, 0.5)) == 0.5
    assert rollout_syncs.distance(answer(0.0, 0.0, 0.0), answer(0.125, 9.0, 9.0, first=7)) == 0.125, "what follows is of another text"
    assert rollout_syncs.apart([answer(0, 0, 0), answer(0, 0, 0)], [answer(0, 0, 0.5), answer(0, 0, 0.25)]) == 0.5


def test_the_last_version_is_among_those_that_a_new_engine_answers() -> None:
    assert rollout_syncs.kept_of({"syncs": 200, "fresh": 4}) == {50, 100, 150, 200}
    assert rollout_syncs.kept_of({"syncs": 7, "fresh": 1}) == {7}


def test_the_tables_by_hand() -> None:
    cell = {"family": "f", "where": "process", "syncs": 4, "fresh": 1}
    ours, other = answer(-1.0, -1.0, -1.0), answer(-1.0, -1.0, -1.5, first=9)
    results: list[dict[str, Any]] = [
        {
            "side": "syncs",
            "cell": cell,
            "seconds": [0.5] * 6,
            "nbytes": [3 * MIB] * 6,
            "gap": [1e-6] * 5 + [2e-6],
            "moved": [0.0] + [0.25] * 5,
            "other": [0, 0, 0, 0, 0, 1],
            "memory": {"both": [MIB * size for size in (10, 20, 30, 31, 32, 33)]},
            "kept": {"4": [ours, ours]},
        },
        {"side": "fresh", "cell": cell | {"sync": 4}, "answers": [ours, other]},
    ]
    store = rollout_syncs.Store(Path("unused"), {"warmup": 2}, {str(n): result for n, result in enumerate(results)})
    _, row = rollout_syncs.table_of(store)
    assert row == ["f, process", "2 + 4", "0.500 (0.500..0.500)", "3.0", "2.5e-01", "1 of 12", "2.0e-06, 2.0e-06", "1, 1, 0.0e+00"]
    (said,) = rollout_syncs.ties_of(store)
    assert said == "Where an answer of f, process has another token, the log-probs of the two are 2.0e-06 nats apart."
    _, row = rollout_syncs.memory_of(store)
    assert row == ["f, process", "both", "10", "30", "33", "1.0000 [1.0000, 1.0000]", "1.0000 [-inf, inf]"], (
        "the line begins behind the warm-up"
    )


@pytest.mark.slow
@pytest.mark.parametrize("where", ["process", "server"])
def test_a_very_small_setting_runs(tmp_path: Path, where: str) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed here; see docs/rollout.md")
    done = module(
        "benchmarks.rollout.rollout_syncs",
        *("--syncs", "4", "--warmup", "1", "--fresh", "1", "--where", where),
        *("--work", str(tmp_path / "work"), "--write", str(tmp_path / "out")),
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    results = list(json.loads((tmp_path / "out.json").read_text())["results"].values())
    assert [result["side"] for result in results] == ["syncs", "fresh"]
    assert sum(results[0]["other"]) == 0
    assert max(results[0]["gap"]) < 1e-5
    assert min(results[0]["moved"][1:]) > 1e-4, "weights that change nothing would show nothing"
    assert results[0]["kept"]["4"][0][0] == results[1]["answers"][0][0]
    page = (tmp_path / "out.md").read_text()
    assert f"| qwen2_5_vl, {where} | 1 + 4 | " in page
