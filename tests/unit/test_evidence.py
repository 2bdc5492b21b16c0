"""scripts.evidence: what recipes, claims, the glossary and tests of agreement say of methods."""

from __future__ import annotations

from typing import Any

import pytest

from scripts import evidence
from vlmrl.cards import EVIDENCE


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, dict[str, Any]]]:
    return evidence.evidence()


def test_what_was_counted_is_fresh(counted: dict[str, dict[str, dict[str, Any]]]) -> None:
    assert EVIDENCE.read_text(encoding="utf-8") == evidence.written(counted), "run: python -m scripts.evidence"


def test_methods_of_a_stage() -> None:
    stage = {
        "name": "rl",
        "advantage": {"name": "a"},
        "loss": {"name": "b", "clip_low": 0.1},
        "filters": [{"name": "c"}, {"name": "d"}],
        "constraints": [],
        "group_loss": None,
        "rollout": {"strategy": {"name": "e"}},
        "optim": {"name": "no slot"},
    }
    assert set(evidence.named(stage)) == {("advantage", "a"), ("policy_loss", "b"), ("filter", "c"), ("filter", "d"), ("strategy", "e")}
    assert list(evidence.named({"name": "sft"})) == []


def test_settings_in_comments() -> None:
    text = "loss: {name: a}  # advantage: {name: b, x: 1}\n#   constraints: [{name: c}]   kl: {name: d}\n# `e`, name: f, model: {name: g}\n"
    assert list(evidence.in_comments(text)) == [("advantage", "b"), ("constraint", "c"), ("kl_estimator", "d")]


def test_what_others_offer() -> None:
    found = evidence.offered()
    assert found["advantage", "grpo"] == ["TRL", "verl"]
    assert found["advantage", "opo"] == ["verl"]
    assert found["strategy", "offpolicy_gt"] == []


def test_settings_of_trl_are_no_methods_of_ours() -> None:
    """`scale_rewards="none"` says nothing of the correction `none`."""
    found = evidence.compared()
    assert {("advantage", "batch_std"), ("policy_loss", "sapo"), ("reducer", "seq_sum"), ("kl_estimator", "unbiased")} <= found
    assert ("importance_correction", "none") not in found
    assert ("kl_estimator", "k2") not in found


def test_core_by_each_reason(counted: dict[str, dict[str, dict[str, Any]]]) -> None:
    """One method for each reason alone, a guess that a recipe uses, and one that nothing names."""

    def core(slot: str, name: str) -> list[str]:
        return counted[slot].get(name, {}).get("core", [])

    assert core("sampler", "uniform")[0] == "default"
    assert core("advantage", "trajectory") == ["recipe"]
    assert core("constraint", "entropy_band") == ["recipe"]
    assert core("reward_shaping", "product") == ["claim"]
    assert core("filter", "overlong") == ["TRL"]
    assert core("kl_estimator", "k2") == ["verl"]
    assert counted["filter"]["verifier_pairs_proposed"] == {"recipes": ["toy_veripo"]}
    assert "hapo" not in counted["advantage"]


def test_claims_have_the_verdict_that_was_measured() -> None:
    _, about = evidence.claims()
    assert about["constraint", "lagrangian"] == {"fgrpo": "holds"}


def test_kits_are_those_of_the_script(counted: dict[str, dict[str, dict[str, Any]]]) -> None:
    assert evidence.kits() == {"g2rpo", "fgrpo", "ton", "tempsamp", "curriculum_gui", "click"}
    assert counted["sampler"]["curriculum_gui"]["kits"] == ["curriculum_gui"]
