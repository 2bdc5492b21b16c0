"""Promises about a model as a thing: its parts and its export (P11), its template's switch for thinking (P13)."""

from __future__ import annotations

import tempfile
from collections import Counter
from typing import Any

import torch

from vlmrl.conform.check import Check, equal
from vlmrl.conform.subject import Tried
from vlmrl.families import probe


def parts(tried: Tried) -> list[Check]:
    """P11: tower, projector and decoder all have parameters; what is saved loads again to the bit."""
    model = tried.subject.model
    counted = Counter(probe.part_of(name) for name, _ in model.named_parameters())
    note = ", ".join(f"{part} {n}" for part, n in sorted(counted.items()))
    inside = {name for name, _ in model.named_parameters() if probe.part_of(name) == "language"}
    decoder = {id(p) for p in model.get_decoder().parameters()} | {id(p) for p in model.get_output_embeddings().parameters()}
    wrong = [name for name, p in model.named_parameters() if (id(p) in decoder) != (name in inside)]
    return [
        equal("P11", "parts", "tower, projector and decoder", {"vision", "language"} <= set(counted), note),
        equal("P11", "parts", "the decoder's parameters are `language`", not wrong, ", ".join(wrong[:3])),
        equal("P11", "export", "saved weights load again", _reloads(model)),
    ]


def _reloads(model: Any) -> bool:
    from transformers import AutoModelForImageTextToText

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = AutoModelForImageTextToText.from_pretrained(folder, dtype=next(model.parameters()).dtype, trust_remote_code=False)
    other = dict(again.state_dict())
    return all(name in other and torch.equal(tensor, other[name]) for name, tensor in model.state_dict().items())


def thinking(tried: Tried) -> list[Check]:
    """P13: a switch for thinking changes nothing but how the answer begins."""
    found = probe.thinking(tried.processor)
    if found is None:
        return [Check("P13", "template", "no switch for thinking", 0.0, 0.0)]
    on, off = found
    return [equal("P13", "template", "the switch changes the end of the prompt alone", max(len(on), len(off)) < 80, f"{on!r}, {off!r}")]
