"""Promises about a model as a thing: its parts and its export (P11), its experts (P12), its template's switch for thinking (P13)."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from vlmrl.extras.families import layouts, probe
from vlmrl.extras.families.conform import exact
from vlmrl.extras.families.conform.check import Check, broken, equal
from vlmrl.extras.families.conform.subject import Tried, alone


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


def frozen(tried: Tried) -> list[Check]:
    """P11: the gradient of parts that are frozen is none, and of all others it is there. Of a prompt with a medium."""
    name = exact.first_case(tried)
    if not tried.prompts[name].counts:
        return []
    named = dict(tried.subject.model.named_parameters())
    wrong: list[str] = []
    try:
        for still in ({"vision"}, {"language"}):
            for one, parameter in named.items():
                parameter.requires_grad_(probe.part_of(one) not in still)
            [[logp]] = layouts.repeat(tried.subject, [tried.scored(name, exact.ANSWERS[:1])])
            logp.sum().backward()
            moving = {probe.part_of(one) for one, p in named.items() if p.grad is not None}
            wanted = {probe.part_of(one) for one in named} - still
            wrong += [] if moving == wanted else [f"{sorted(still)} frozen, {sorted(moving)} moved"]
            tried.subject.model.zero_grad(set_to_none=True)
    except exact.ERRORS as error:
        return [broken("P11", name, "frozen parts", error)]
    finally:
        tried.subject.model.requires_grad_(True)
        tried.subject.model.zero_grad(set_to_none=True)
    return [equal("P11", name, "frozen parts get no gradient, all others do", not wrong, "; ".join(wrong))]


def targets(tried: Tried) -> list[Check]:
    """P11: every kind of decoder layer has linear layers for adapters, among them some of what looks at other columns."""
    model = tried.subject.model
    found = probe.lora_targets(model)
    bare = [
        f"{tuple(names)} not in {type(mixer).__name__}"
        for layer, kind in probe.decoder_layers(model)
        for names in (found.get(kind, ()),)
        for mixer in probe.mixers(layer)
        if not any(isinstance(m, torch.nn.Linear) and n.rpartition(".")[2] in names for n, m in mixer.named_modules())
    ]
    none = [str(n) for n, (layer, _) in enumerate(probe.decoder_layers(model)) if not probe.mixers(layer)]
    note = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in found.items())
    return [equal("P11", "adapters", "each kind of layer has targets", not bare and not none, f"{note}; {bare[:2]} {none[:2]}")]


def _reloads(model: Any) -> bool:
    from transformers import AutoModelForImageTextToText

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=next(model.parameters()).dtype, use_safetensors=True, trust_remote_code=False
        )
    other = dict(again.state_dict())
    return all(name in other and torch.equal(tensor, other[name]) for name, tensor in model.state_dict().items())


def experts(tried: Tried) -> list[Check]:
    """P12: a packed row chooses the experts that rows alone choose, for every token in every layer. Float32 decides in a router, as in
    training, also where the weights are of float64."""
    routers = {name: m for name, m in tried.subject.model.named_modules() if "router" in type(m).__name__.lower()}
    if not tried.facts.experts:
        return []
    if not routers:
        return [Check("P12", "experts", "routers found", math.nan, 0.0, note="no module of the model is called a router")]
    name = exact.first_case(tried)
    with torch.no_grad():
        group = tried.scored(name, exact.ANSWERS[:3])
        [row] = layouts.laid([group])
        packed = _chosen(routers, row.columns, lambda: layouts.shared_prefix(tried.subject, [group]))
        flips, tokens, at = 0, 0, row.prompt
        for answer in group.answers:
            single = _chosen(routers, row.prompt + len(answer), lambda one=answer: alone(tried, group, one))
            columns = [*range(row.prompt), *range(at, at + len(answer))]
            at += len(answer)
            for router, choice in single.items():
                flips += int((packed[router][columns] != choice).any(-1).sum())
                tokens += len(columns)
    return [Check("P12", name, f"of {tokens} choices, other experts", float(flips), 0.0)]


def _chosen(routers: Mapping[str, Any], rows: int, run: Callable[[], Any]) -> dict[str, torch.Tensor]:
    """Router -> what it chose for each of so many tokens in one forward pass: ids of experts, ascending, or which of them count."""
    out: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: Any, args: Any, made: Any) -> None:
            tensors = [part.reshape(-1, part.shape[-1]) for part in (made if isinstance(made, tuple) else (made,))]
            ids = next((part for part in tensors if not part.is_floating_point()), None)
            choice = tensors[0] > 0 if ids is None else ids.sort(-1).values
            if len(choice) == rows:
                out[name] = choice

        return hook

    hooks = [module.register_forward_hook(keep(name)) for name, module in routers.items()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return out


def thinking(tried: Tried) -> list[Check]:
    """P13: a switch for thinking changes nothing but how the answer begins."""
    found = probe.thinking(tried.processor)
    if found is None:
        return [Check("P13", "template", "no switch for thinking", 0.0, 0.0)]
    on, off = found
    return [equal("P13", "template", "the switch changes the end of the prompt alone", max(len(on), len(off)) < 80, f"{on!r}, {off!r}")]
