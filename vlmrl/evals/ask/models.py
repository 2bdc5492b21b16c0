"""Models that an evaluation can ask: a checkpoint on this machine, a served model, or the records of an earlier evaluation.

Prompts are made here in every case, by the checkpoint's own processor, so all three see the same token ids and the same pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import torch

from vlmrl.errors import ConfigError
from vlmrl.evals.ask.engines import EvalEngine, LocalEngine, ReplayEngine
from vlmrl.evals.ask.tasks import Task
from vlmrl.media.store import MediaSettings, MediaStore
from vlmrl.policy.fingerprint import weights_fingerprint
from vlmrl.policy.load import load_policy, load_processor
from vlmrl.policy.model import Policy, ProcessorBundle
from vlmrl.policy.vision import VisionCache
from vlmrl.registry import Catalogue
from vlmrl.rollout.own import own_engine


class Model(Protocol):
    """Answers tasks."""

    @property
    def name(self) -> str:
        """In tables."""
        ...

    @property
    def bundle(self) -> ProcessorBundle: ...

    def engine(self, task: Task, store: MediaStore, records: Path) -> EvalEngine:
        """Make the engine for one task, whose media are in `store` and whose records file is `records`."""
        ...


def model_folder(checkpoint: Path) -> Path:
    """Find the folder with a model's config and weights that `checkpoint` means.

    Raises:
        ConfigError: neither a model folder nor a run with a final model.
    """
    for folder in (checkpoint, checkpoint / "final"):
        if (folder / "config.json").is_file():
            return folder
    raise ConfigError(
        f"{checkpoint}: no model there (no config.json); give a model folder such as <run>/final or <run>/stages/<name>. "
        "Folders under <run>/checkpoints hold only what training changes and cannot be loaded alone"
    )


def compute_dtype(device: str, dtype: str) -> str:
    """Resolve `auto`: bfloat16 on a GPU that computes in it, else float32. Other names stay as they are."""
    if dtype != "auto":
        return dtype
    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    return "bfloat16" if on_gpu and torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float32"


def fingerprint_of(policy: Policy, dtype: str) -> str:
    """Fingerprint a policy's answers. Those in another compute type are other answers: an evaluation that goes on does not mix them."""
    return weights_fingerprint(policy) + ("" if dtype == "float32" else f"-{dtype}")


@dataclass(kw_only=True)
class LocalModel:
    """A policy in this process."""

    name: str
    policy: Policy
    fingerprint: str

    @staticmethod
    def load(checkpoint: Path, *, device: str = "auto", dtype: str = "float32", attention: str = "sdpa") -> LocalModel:
        """Load a checkpoint.

        Raises:
            ConfigError: there is none.
        """
        folder = model_folder(checkpoint)
        bundle = load_processor(str(folder))
        policy = load_policy(str(folder), bundle, device=device, dtype=dtype, attention=attention)
        return LocalModel(name=checkpoint.absolute().name, policy=policy, fingerprint=fingerprint_of(policy, dtype))

    @property
    def bundle(self) -> ProcessorBundle:
        return self.policy.bundle

    def engine(self, task: Task, store: MediaStore, records: Path) -> EvalEngine:
        vision = VisionCache(store, budget_bytes=task.media.cache_bytes)
        return LocalEngine(own_engine(self.policy, vision), fingerprint=self.fingerprint)


def local(checkpoint: Path, tasks: Sequence[Task], *, device: str, dtype: str) -> AbstractContextManager[Model]:
    """Load a checkpoint that the reference engine asks, whatever the tasks."""
    return nullcontext(LocalModel.load(checkpoint, device=device, dtype=dtype))


SERVED: Catalogue[Callable[..., Any]] = Catalogue("served model")
"""Makes a `Model` behind an address, of its name, the processor of the checkpoint that is served, and the address; it has `close`."""


@dataclass(kw_only=True)
class RecordedModel:
    """The answers of an evaluation that was run before, to be scored again."""

    name: str
    bundle: ProcessorBundle

    def engine(self, task: Task, store: MediaStore, records: Path) -> EvalEngine:
        """Raises ConfigError or StorageError where there are no records to score again."""
        return ReplayEngine.of_files([records])


def open_store(task: Task, bundle: ProcessorBundle) -> MediaStore:
    """Open a store of media as the task says the model sees them."""
    return MediaStore.of(MediaSettings(**task.media.model_dump(include={known.name for known in fields(MediaSettings)})), bundle)
