"""zoo.providers.reliance: rows that were asked another question, under it and under the group's own."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch

from tests.support.builders import group, sample
from vlmrl.policy.pack import Row
from vlmrl.types import Guidance
from vlmrl.zoo.providers import reliance


def test_reliance_is_the_gap_between_the_prompts(monkeypatch):
    mine = group(["ab", "cde"])
    hinted = dataclasses.replace(mine.prompt, sample=sample(question_first=True, id="h"), ids=(1, 2))
    hinted = dataclasses.replace(hinted, sample=dataclasses.replace(hinted.sample, question="hint"))
    row = dataclasses.replace(mine.rollouts[1], provenance="guided", guidance=Guidance(question="hint", tier=2))
    mine = dataclasses.replace(mine, rollouts=(mine.rollouts[0], row), guided=(hinted,))
    rows = [Row(index=n, group=0, prompt=mine.trained_under(r), response=r.ids) for n, r in enumerate(mine.rollouts)]
    batch = SimpleNamespace(groups=[(0, SimpleNamespace(group=mine))], rollouts=mine.rollouts, rows=rows)

    def score(learner, asked):
        """Log-prob -1 per token of the longer prompt, -2 of the plain one; beyond the response anything."""
        out = torch.full((len(asked), 5), 100.0)
        for n, one in enumerate(asked):
            out[n, : len(one.response)] = -2.0 / len(one.prompt.ids)
        return out

    monkeypatch.setattr(reliance, "score_rows", score)
    found = reliance.reliance(SimpleNamespace(learner=None), batch, None)["reliance_N"].tolist()
    assert math.isnan(found[0])
    assert found[1] == pytest.approx(-1.0)
