"""Two ranks of FSDP load models of which rank 1 has no weight file: `torchrun ... -m tests.support.spread_ranks FOLDER CASE,...`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tests.support import preload
from vlmrl.config.train import TrainSection
from vlmrl.extras.scale import fsdp
from vlmrl.policy.fingerprint import weights_fingerprint
from vlmrl.policy.load import load_policy, load_processor
from vlmrl.policy.lora import add_adapters
from vlmrl.policy.model import LoraSpec, Policy
from vlmrl.train import dist
from vlmrl.train.updates import open_engine

assert preload is not None
CASES: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "plain": ("qwen2_5_vl", False, {}),
    "deepstack": ("qwen3_vl", False, {}),
    "tied": ("qwen3_vl", True, {}),
    "adapters": ("qwen2_5_vl", True, {"lora": True}),
    "adapters in bfloat16": ("qwen2_5_vl", True, {"lora": True, "dtype": "bfloat16"}),
    "frozen tower in bfloat16": ("qwen3_vl", False, {"dtype": "bfloat16", "trains": ("language",)}),
    "reference": ("qwen3_vl", False, {"frozen": True}),
    "offloaded": ("qwen2_vl", False, {"offload": "all"}),
}
"""Family, whether embeddings are tied, and how it is loaded."""


def load(folder: Path, read: Any, case: dict[str, Any]) -> Policy:
    how = {key: case[key] for key in ("dtype", "trains") if key in case}
    policy = load_policy(str(folder), load_processor(str(folder)), device="cpu", read=read, **how)
    if case.get("lora"):
        spec = LoraSpec(rank=2, alpha=4.0, vision=True)
        add_adapters(policy, spec, seed_of=lambda name: sum(name.encode()), base=str(folder))
    return policy


def bytes_of(tensor: torch.Tensor) -> int:
    own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return 0 if own.is_meta else own.numel() * own.element_size()


def held(policy: Policy) -> int:
    """Bytes of parameters that this rank holds."""
    return sum(bytes_of(p) for p in policy.model.parameters())


def main(folder: Path, case: dict[str, Any]) -> None:
    whole = load(folder / "rank0", "placed", case)
    expected = {
        name: value.clone() for name, value in [*whole.model.named_parameters(remove_duplicate=False), *whole.model.named_buffers()]
    }
    fingerprint, size = weights_fingerprint(whole), held(whole)

    engine = open_engine(TrainSection(sharding="fsdp", offload=case.get("offload", "none")), torch.device("cpu"))
    policy = load(folder / f"rank{dist.rank()}", engine.read, case)
    if case.get("frozen"):
        policy.model.requires_grad_(False)
    loaded, most, units = held(policy), 0, [0]
    filled = fsdp.fill

    def watched(unit: torch.nn.Module, device: torch.device) -> None:
        nonlocal most
        units.append(sum(p.numel() * p.element_size() for p in unit.parameters() if not isinstance(p, DTensor)))
        filled(unit, device)
        most = max(most, held(policy))

    fsdp.fill = watched  # pyright: ignore[reportPrivateImportUsage]
    try:
        engine.wrap(policy)
    finally:
        fsdp.fill = filled  # pyright: ignore[reportPrivateImportUsage]
    named: dict[str, torch.Tensor] = dict(policy.model.named_parameters(remove_duplicate=False))
    assert len(named) + len(list(policy.model.named_buffers())) == len(expected)
    for name, value in [*named.items(), *policy.model.named_buffers()]:
        assert torch.equal(policy.shards.full(value).cpu(), expected[name]), name
        assert policy.shards.full(value).dtype == expected[name].dtype, name
    if policy.model.config.tie_word_embeddings:
        assert policy.model.lm_head.weight is policy.model.get_input_embeddings().weight
    trains = {name: p.requires_grad and not case.get("frozen") for name, p in whole.model.named_parameters(remove_duplicate=False)}
    assert {name: p.requires_grad for name, p in named.items()} == trains
    assert weights_fingerprint(policy) == fingerprint
    report = {"loaded": loaded, "most": most, "whole": size, "unit": max(units), "after": held(policy)}
    (folder / f"report{dist.rank()}.json").write_text(json.dumps(report))


def run(folder: Path, names: Sequence[str]) -> None:
    dist.start()
    for name in names:
        main(folder / name, CASES[name][2])
    dist.stop()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2].split(","))
