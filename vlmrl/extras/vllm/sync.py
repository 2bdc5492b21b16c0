"""Sends the policy's weights into the engine, and makes sure that they are there.

The tensors go under the trainer's own names, gathered one by one (every rank gathers all of them, in one order) and handed over in buckets,
so that no rank holds the whole. Then three questions are asked:

* did every tensor of the trainer reach a parameter, and every parameter a tensor? A name that the loader passes over would leave a weight
  as it was, and the policy would train without ever being sampled;
* do parameters hold the bits that were sent? Sums of the bits are compared: all after weights were sent whole, a sixteenth in turn after
  that;
* answers with the trainer's log-probs? That is asked by who can compute them (`train.stage.mismatch`).

A tower that does not train is sent once. Adapters (LoRA) are added to the weights that they belong to, bit for bit as in an export.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from vlmrl.errors import EngineError
from vlmrl.extras.vllm.inputs import Version
from vlmrl.extras.vllm.worker import LoadReport, checksum
from vlmrl.families.qwen_vl import in_tower
from vlmrl.policy.lora import merged_items
from vlmrl.policy.model import Policy

BUCKET_BYTES = 2**30
TURNS = 16
"""Synchronisations in which every parameter is compared once."""
SHOWN = 5

Call = Callable[..., Any]
"""`call(method, *arguments)` of the engine's worker."""
Named = Iterator[tuple[str, torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class SyncReport:
    """What one synchronisation did."""

    version: Version
    tensors: int
    nbytes: int
    compared: int
    """Parameters whose checksums were compared."""
    seconds: float
    whole: bool


@dataclass
class Sync:
    """Keeps one engine's weights current."""

    call: Call
    count: int = 0
    """Synchronisations so far."""
    landed: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Name at the trainer -> parameters of the engine."""

    def send(self, policy: Policy, version: Version, *, whole: bool) -> SyncReport:
        """Send all weights, or with `whole` off those outside a tower that does not train. Every rank calls it.

        Raises:
            EngineError: a tensor or a parameter was left out, or a parameter does not hold what was sent.
        """
        began = time.perf_counter()
        tower = whole or policy.vision_trains
        due = None if whole else self.due()
        sums: dict[str, int] = {}
        sizes: dict[str, int] = {}

        def outgoing() -> Named:
            for name, tensor in weights(policy, tower=tower):
                sent = tensor.detach().to(policy.compute)
                sizes[name] = sent.numel() * sent.element_size()
                if due is None or name in due:
                    sums[name] = checksum(sent)
                yield name, sent

        loaded = self._load(outgoing(), language_only=not tower)
        compared = self.check(loaded, sizes, sums)
        return SyncReport(
            version=version,
            tensors=len(sizes),
            nbytes=sum(sizes.values()),
            compared=compared,
            seconds=time.perf_counter() - began,
            whole=whole,
        )

    def due(self) -> set[str]:
        """Names whose bits are compared in this turn: a fused parameter with all that it is made of."""
        turn = {name for place, name in enumerate(sorted(self.landed)) if place % TURNS == self.count % TURNS}
        of_turn = {parameter for name in turn for parameter in self.landed[name]}
        return {name for name, parameters in self.landed.items() if of_turn.intersection(parameters)}

    def check(self, loaded: LoadReport, sent: Iterable[str], sums: dict[str, int]) -> int:
        """Whether everything arrived; the number of parameters that were compared.

        Args:
            sent: names of all tensors.
            sums: of the bits of those that are compared.

        Raises:
            EngineError: a tensor or a parameter was left out, or a parameter does not hold what was sent.
        """
        self._require_complete(loaded, sent)
        compared = self._compare(sums)
        self.count += 1
        return compared

    def _load(self, outgoing: Named, *, language_only: bool) -> LoadReport:
        """Hand over all tensors. Whatever happens to one, all are gathered: other ranks gather with this one."""
        self.call("vlmrl_begin", language_only)
        try:
            for bucket in buckets(outgoing, BUCKET_BYTES):
                self.call("vlmrl_load", bucket)
            return self.call("vlmrl_finish")
        except ValueError as error:
            for _ in outgoing:
                pass
            raise refused(str(error)) from error

    def _require_complete(self, loaded: LoadReport, sent: Iterable[str]) -> None:
        """
        Raises:
            EngineError: a tensor went nowhere, or a parameter got nothing.
        """
        lost = sorted(set(sent) - set(loaded["landed"]))
        if lost:
            raise EngineError(f"{len(lost)} tensors of the trainer went nowhere in vLLM's model: {_listed(lost)}; {_ADVICE}")
        reached = {place for places in loaded["landed"].values() for place in places}
        empty = sorted(set(loaded["parameters"]) - reached)
        if empty:
            raise EngineError(f"{len(empty)} parameters of vLLM's model got no tensor of the trainer: {_listed(empty)}; {_ADVICE}")
        self.landed |= {name: tuple(dict.fromkeys(places)) for name, places in loaded["landed"].items()}

    def _compare(self, sums: dict[str, int]) -> int:
        """Compare sums of bits parameter by parameter; the number of them.

        Raises:
            EngineError: one differs.
        """
        wanted: dict[str, int] = {}
        for name, value in sums.items():
            for parameter in self.landed[name]:
                wanted[parameter] = wanted.get(parameter, 0) + value
        held: dict[str, int] = self.call("vlmrl_sums", sorted(wanted))
        wrong = sorted(name for name, value in wanted.items() if held[name] != value)
        if wrong:
            raise EngineError(f"{len(wrong)} parameters of vLLM's model do not hold the bits that were sent: {_listed(wrong)}; {_ADVICE}")
        return len(wanted)


_ADVICE = "answers would be of another policy than the one that trains; use rollout.engine: hf, and report the versions of both packages"


def refused(detail: str) -> EngineError:
    """The engine's loader does not take a tensor."""
    return EngineError(f"vLLM's loader refuses a tensor of the trainer: {detail[:500]}; {_ADVICE}")


def weights(policy: Policy, *, tower: bool) -> Named:
    """Yield the policy's weights as a model without adapters, by name, each tied one once. With `tower` off, those outside the vision
    tower."""
    parameters = dict(policy.model.named_parameters(remove_duplicate=False))
    seen: set[int] = set()
    aliases: set[str] = set()
    for name, parameter in parameters.items():
        if id(parameter) in seen:
            aliases.add(name)
        seen.add(id(parameter))
    return merged_items(policy, lambda name: name not in aliases and (tower or not in_tower(name)))


def buckets(named: Named, most: int) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Cut tensors, in their order, into buckets of at most `most` bytes; a larger one is alone.

    Yields:
        [(name, tensor), ...]
    """
    out: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, tensor in named:
        nbytes = tensor.numel() * tensor.element_size()
        if out and size + nbytes > most:
            yield out
            out, size = [], 0
        out.append((name, tensor))
        size += nbytes
    if out:
        yield out


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
