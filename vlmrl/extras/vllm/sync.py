"""Sends the policy's weights into the engine, and makes sure that they are there.

The tensors go under the trainer's own names, gathered one by one (every rank gathers all of them, in one order) and handed over in buckets,
so that no rank holds the whole. Then three questions are asked:

* did every tensor of the trainer reach a parameter, and every parameter a tensor? A name that the loader passes over would leave a weight
  as it was, and the policy would train without ever being sampled;
* did the bits come that were sent, and do parameters hold them? Sums of the bits are compared, of every tensor and every parameter;
* answers with the trainer's log-probs? That is asked by who can compute them (`train.stage.mismatch`).

A tower that does not train is sent once. Adapters (LoRA) are added to the weights that they belong to, bit for bit as in an export.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vlmrl.errors import EngineError
from vlmrl.extras.vllm.inputs import Version
from vlmrl.extras.vllm.worker import LoadReport, checksum
from vlmrl.families.qwen_vl import in_tower
from vlmrl.policy.lora import merged_items
from vlmrl.policy.model import Policy

BUCKET_BYTES = 2**30
WIDE = ".A_log"
"""End of the names of decays (gated delta nets), which vLLM holds and everybody reads in float32."""
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
    """Parameters whose bits were compared."""
    seconds: float
    whole: bool


@dataclass
class Sync:
    """Keeps the weights of the engine in this process current."""

    call: Call

    def send(self, policy: Policy, version: Version, *, whole: bool) -> SyncReport:
        """Send all weights, or with `whole` off those outside a tower that does not train. Every rank calls it.

        Raises:
            EngineError: a tensor or a parameter was left out, or a parameter does not hold what was sent.
        """
        began = time.perf_counter()
        tower = whole or policy.vision_trains or policy.subject is not None  # where its parts have other names, all of them go
        sent = Sent()
        loaded = self._load(sent.noted(weights(policy, tower=tower), policy.compute), language_only=not tower)
        compared = check([loaded], sent)
        return SyncReport(
            version=version,
            tensors=len(sent.sums),
            nbytes=sent.nbytes,
            compared=compared,
            seconds=time.perf_counter() - began,
            whole=whole,
        )

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


class Sent:
    """What the trainer has sent of one version, by name."""

    def __init__(self) -> None:
        self.sums: dict[str, int] = {}
        """Sum of the bits."""
        self.sizes: dict[str, int] = {}
        """Elements."""
        self.nbytes = 0

    def noted(self, outgoing: Named, dtype: torch.dtype) -> Named:
        """Yield (name, tensor of this type, or of that in which both sides compute with it) and note them."""
        for name, tensor in outgoing:
            sent = tensor.detach().to(torch.float32 if name.endswith(WIDE) else dtype)
            self.sums[name], self.sizes[name] = checksum(sent), sent.numel()
            self.nbytes += sent.numel() * sent.element_size()
            yield name, sent


def check(reports: Sequence[LoadReport], sent: Sent) -> int:
    """Whether every worker of an engine has what was sent; the number of parameters whose bits were compared.

    Of a parameter that is cut among workers the sum over the shards is that of the whole; one that all have whole is compared in each.
    Where some rows are with several workers, as keys and values of few heads are, neither holds: then the bits that came to each worker
    are all that is compared.

    Raises:
        EngineError: a worker has noticed an error; a tensor or a parameter was left out; other bits came, or are held.
    """
    for rank, report in enumerate(reports):
        where = f" (worker {rank})" if len(reports) > 1 else ""
        if report["error"]:
            raise refused(report["error"] + where)
        _require_complete(report, sent, where)
        wrong = sorted(name for name, value in sent.sums.items() if report["arrived"].get(name) != value)
        if wrong:
            raise EngineError(f"{len(wrong)} tensors of the trainer came to vLLM with other bits{where}: {_listed(wrong)}; {_ADVICE}")
    wanted: dict[str, int] = {}
    whole: dict[str, int] = {}
    for name, places in reports[0]["landed"].items():
        for parameter in dict.fromkeys(places):
            wanted[parameter] = wanted.get(parameter, 0) + sent.sums[name]
            whole[parameter] = whole.get(parameter, 0) + sent.sizes[name]
    states = {name: _holds([(one["held"][name], one["sizes"][name]) for one in reports], wanted[name], whole[name]) for name in wanted}
    wrong = sorted(name for name, holds in states.items() if holds is False)
    if wrong:
        raise EngineError(f"{len(wrong)} parameters of vLLM's model do not hold the bits that were sent: {_listed(wrong)}; {_ADVICE}")
    return sum(holds is True for holds in states.values())


def _holds(parts: Sequence[tuple[int, int]], wanted: int, size: int) -> bool | None:
    """Whether (sum, elements) of a parameter's parts are those of the whole; None where that cannot be said."""
    if all(elements == 0 or elements >= size for _, elements in parts):
        return all(value == wanted for value, _ in parts)
    if sum(elements for _, elements in parts) == size:
        return sum(value for value, _ in parts) == wanted
    return None


def _require_complete(report: LoadReport, sent: Sent, where: str) -> None:
    """
    Raises:
        EngineError: a tensor went nowhere, or a parameter got nothing or only a part.
    """
    lost = sorted(set(sent.sums) - set(report["landed"]))
    if lost:
        raise EngineError(f"{len(lost)} tensors of the trainer went nowhere in vLLM's model{where}: {_listed(lost)}; {_ADVICE}")
    unknown = sorted(set(report["landed"]) - set(sent.sums))
    if unknown:
        raise EngineError(f"{len(unknown)} tensors came to vLLM that the trainer did not send{where}: {_listed(unknown)}; {_ADVICE}")
    reached = {place for places in report["landed"].values() for place in places}
    empty = sorted(set(report["held"]) - reached)
    if empty:
        raise EngineError(f"{len(empty)} parameters of vLLM's model got no tensor of the trainer{where}: {_listed(empty)}; {_ADVICE}")
    if partial := report["partial"]:
        raise EngineError(f"{len(partial)} parameters of vLLM's model got only a part{where}: {_listed(partial)}; {_ADVICE}")


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
