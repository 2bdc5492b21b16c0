"""The plan of `vlmrl plan` beside the ledger of a run: what it says of each phase, and what the run leaves for the next plan."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version

from vlmrl.config.schema import Config, StageBase
from vlmrl.extras.plan import slack
from vlmrl.extras.plan.gpus import GPUS
from vlmrl.extras.plan.memory import memory
from vlmrl.extras.plan.model import FAMILIES, shape_of
from vlmrl.extras.plan.settings import settings_of
from vlmrl.policy.model import Policy
from vlmrl.run.session import Session
from vlmrl.train import dist
from vlmrl.train.memory_ledger import DevicePeaks, MemoryLedger


def foresee(ledger: MemoryLedger, s: Session, cfg: StageBase) -> None:
    """Tell a stage's ledger what the plan says of each phase, and where the next plan looks for what is measured. The longest prompt is
    that of the stage's rows, in place of the most that may come."""
    lengths = s.rows_of(cfg.source, cfg.answer_format).prompt_tokens
    ledger.planned = planned(s.cfg, cfg, s.policy, longest=max(lengths.values(), default=None), world=dist.world())
    ledger.keep = keep


def planned(cfg: Config, stage: StageBase, policy: Policy, *, longest: int | None, world: int) -> dict[str, int]:
    """Ask the plan for the bytes of tensors of each phase. Nothing for a model or a device that no plan is about."""
    import torch  # the plan itself runs without

    config = policy.model.config.to_dict()
    if policy.device.type != "cuda" or config.get("model_type") not in FAMILIES:
        return {}
    card = replace(next(iter(GPUS.values())), memory=torch.cuda.get_device_properties(policy.device).total_memory)
    found = memory(settings_of(cfg, stage, shape=shape_of(config), gpu=card, gpus=world, given={"prompt": longest}))
    return {phase.replace("/", "_"): size for phase, size in found.tensors.items()}


def keep(device: str, seen: DevicePeaks) -> None:
    """Write what was measured on a device to where the next plan looks.

    Raises:
        StorageError: the disk refuses.
    """
    found = slack.RunPeaks(slack=seen.slack, allocated=seen.allocated, reserved=seen.reserved, run=seen.run)
    slack.remember(device, version("torch"), found)
