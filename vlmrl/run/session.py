"""The parts of a run that live as long as the process, and how they are restored."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from vlmrl import STARTED
from vlmrl.config.schema import Config, SourceSection
from vlmrl.data.encode import Encoder
from vlmrl.errors import ConfigError
from vlmrl.media.store import MediaStore
from vlmrl.policy.foreign import unproven
from vlmrl.policy.load import files_of, load_policy, load_processor, pick_device
from vlmrl.policy.lora import fold_adapters
from vlmrl.policy.model import Policy, ProcessorBundle
from vlmrl.policy.vision import VisionCache
from vlmrl.policy.vision_disk import FeatureStore
from vlmrl.run import checkpoint
from vlmrl.run.identity import FOLDER as INPUTS
from vlmrl.run.identity import Identity
from vlmrl.run.media import open_media
from vlmrl.run.optional import OPTIONAL, SecondPlace, WritesBeside
from vlmrl.run.rows import Rows, load_rows
from vlmrl.run.rundir import RunDir, stage_folder
from vlmrl.run.tracking import Tracker
from vlmrl.run.ui import Ui
from vlmrl.train import dist
from vlmrl.train.meter import Clock
from vlmrl.train.state import RunState, UsedMedia
from vlmrl.train.updates import Engine, open_engine, recompute
from vlmrl.types import Part


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where model and data really are, after `toy` has been replaced by what it generated."""

    model: str
    data: Path


class Service(Protocol):
    """What rewards ask beside the answer (`service=True`), such as judges."""

    def read(self) -> Mapping[str, float]:
        """What it cost since the last call, for a step's line."""
        ...


@dataclass(kw_only=True)
class Session:
    """The parts of a run that live as long as the process. `state` is all that must outlive it."""

    cfg: Config
    config_hash: str
    places: Places
    run: RunDir
    ui: Ui
    tracker: Tracker
    bundle: ProcessorBundle
    store: MediaStore
    encoder: Encoder
    state: RunState
    engine: Engine
    """How weights and moments lie on the ranks."""
    share: Callable[[Policy], None] | None
    """Has ranks share the packed rows of a policy (`train.sequence`)."""
    identity: Identity
    """What the run was begun with and has made; kept up on rank 0."""
    used: UsedMedia
    base: str
    """Model that the current stage starts from: the recipe's, or what the stage before exported."""
    export_dtype: torch.dtype = torch.float32
    """Type of the weights that leave the run (`export.dtype`)."""
    restored: Path | None = None
    """Checkpoint whose tensors the first stage of this process starts from."""
    background: WritesBeside | None = None
    """Writes checkpoints beside training (`checkpoint.asynchronous`)."""
    mirror: SecondPlace | None = None
    """The second place of checkpoints (`checkpoint.mirror`)."""
    publisher: Any = None
    """Uploads weights beside training (`run.push_to_hub`)."""
    rollout_engines: dict[str, Any] = field(default_factory=dict)
    """Engines that outlive a stage, by their names in recipes; each has `close` (`run.engines`)."""
    services: list[Service] = field(default_factory=list)
    """Open around the stages (`run.start`)."""
    failed_saves: int = 0
    clock: Clock = field(default_factory=Clock)
    rows: dict[tuple[SourceSection, str], Rows] = field(default_factory=dict)
    first_rl_step: dict[str, Callable[[], float]] = field(
        default_factory=lambda: {"time/to_first_rl_step": lambda: time.perf_counter() - STARTED}
    )
    """Logged with the process's first step of a stage that generates."""
    profile_steps: int = 0
    """Steps of each stage to trace."""
    policy: Policy = field(init=False)
    """The weights that train, from stage to stage (`open_policy`)."""
    vision: VisionCache = field(init=False)

    @property
    def recomputes(self) -> bool:
        """Whether activations are computed again in the backward pass; what was left to the machine is settled (`run.machine`)."""
        return self.cfg.model.gradient_checkpointing is True

    def open_policy(self) -> None:
        """Load the weights that the current stage starts from."""
        self._load(self.base)
        self.ui.say(f"attention over packed rows: {self.policy.prefix_backend} ({self.policy.prefix_reason})")
        self.vision = self.open_vision()

    def begin_stage(self, add: Callable[[Policy], None] | None) -> None:
        """Give the policy the adapters of a stage. Where an engine has to take the model anew, the weights are loaded again."""
        if self.policy.shards.taken and (add is not None or self.engine.per_stage):
            self._load(self.base, add)
        elif add is not None:
            add(self.policy)

    def take_in(self, folder: Path) -> None:
        """After a stage: from here on the live weights are those of its export."""
        if self.policy.quantized == "none":  # else base and adapters together are what the last stage's export holds (`config.schema`)
            if self.policy.lora is not None and self.policy.shards.taken:
                return self._load(str(folder))
            fold_adapters(self.policy)
        if self.state.stage == len(self.cfg.stages) - 1 and self.export_dtype != torch.float32:
            OPTIONAL["export.round"](self.policy, self.export_dtype, self.ui.say)

    def _load(self, path: str, add: Callable[[Policy], None] | None = None) -> None:
        with self.clock.phase("load"):
            policy = self.load_policy(path, trains=self.cfg.trained)
            if add is not None:
                add(policy)
            if self.recomputes:
                recompute(policy.model)
            self.engine.wrap(policy)
        policy.version = self.state.policy_version
        before = getattr(self, "policy", None)
        if before is not None:  # the cache of features knows versions only
            policy.vision_version = before.vision_version + 1
        self.policy = policy

    def load_policy(self, path: str, *, trains: Collection[Part]) -> Policy:
        """A model under the recipe's settings, as the engine takes it. Every rank calls this, and the engine's `wrap` after it.
        `trains`: parts that stay float32 (`policy.load`).

        Only the recipe's model is quantised: an export holds sums that would lose most of an update in 4 bits."""
        m = self.cfg.model
        policy = dist.run_synchronized(  # where rank 0 alone reads, the others must learn that it could not
            lambda: load_policy(
                path,
                self.bundle,
                device=m.device,
                dtype=m.dtype,
                attention=m.attention,
                revision=m.revision,
                positions=m.positions,
                prefix_backend=m.prefix_backend,
                vision_chunk_patches=m.vision_chunk_patches,
                read=self.engine.read,
                quantize=m.quantize if path == self.places.model else "none",
                trains=trains,
            )
        )
        if m.kernels == "liger":
            from vlmrl.policy.liger import fuse  # of CUDA

            fuse(policy.model, device=policy.device)
        if self.share is not None:
            self.share(policy)
        return policy

    def open_vision(self) -> VisionCache:
        """A cache of vision features under the recipe's settings."""
        m = self.cfg.media
        disk = FeatureStore(Path(m.vision_cache_dir).expanduser(), budget_bytes=m.vision_cache_bytes) if m.vision_cache_dir else None
        return VisionCache(self.store, budget_bytes=m.cache_bytes, disk=disk)

    def base_of(self, index: int) -> str:
        """Model that a stage starts from."""
        return self.places.model if index == 0 else str(self.stage_folder(index - 1))

    def stage_folder(self, index: int) -> Path:
        """Where a stage's weights are exported to."""
        return stage_folder(self.run, self.cfg, index)

    def rows_of(self, source: SourceSection, answer_format: str) -> Rows:
        """Audited rows of a source, read once per process."""
        key = (source, answer_format)
        if key not in self.rows:
            quarantine, data, plugins = self.run.path / "quarantine.jsonl", self.cfg.data, self.cfg.plugins
            with self.clock.phase("audit"):
                self.rows[key] = load_rows(
                    source, data, self.places.data, answer_format, self.encoder, quarantine=quarantine, ui=self.ui, plugins=plugins
                )
        return self.rows[key]


def fixed_options(cfg: Config) -> dict[str, Any]:
    """The part of a config that decides the numbers: it may not change between start and resume. Cadence, caches and display may."""
    out = cfg.model_dump(mode="json")
    del out["checkpoint"], out["keep"]
    since = (("model", "family", "auto"), ("model", "quantize", "none"), ("media", "max_tiles", None), ("data", "prompt", None))
    for part, name, before in since:  # runs that were begun before there was a choice
        if out[part][name] == before:
            del out[part][name]
    if cfg.export == type(cfg.export)():
        del out["export"]
    for name in ("root", "trackers", "threads", "push_to_hub"):
        del out["run"][name]
    for name in ("cache_bytes", "prefetch", "workers", "deadline", "vision_cache_dir", "vision_cache_bytes"):
        del out["media"][name]
    del out["train"]["patience"], out["train"]["offload"], out["train"]["offload_activations"], out["train"]["rehearse"]
    del out["data"]["check_against"], out["data"]["changed"]
    del out["eval"]["suite"], out["eval"]["data_root"], out["eval"]["max_seconds"], out["eval"]["best"]
    if out["toy"] is not None:
        later = (("base_media", None), ("base_width", 128))  # runs that were begun before there were these
        out["toy"] = {key: value for key, value in out["toy"].items() if key != "cache" and (key, value) not in later}
    for stage in out["stages"]:
        del stage["checkpoint_every"], stage["max_tokens_per_microbatch"], stage["epochs"]  # by now they are steps
        if not stage.get("rollout", {}).get("router_replay", True):
            del stage["rollout"]["router_replay"]
        for part, free in (("rollout", ("replay_gap", "max_gap", "vllm")), ("teacher", ("servers", "token_file", "patience"))):
            for name in free if part in stage else ():
                del stage[part][name]
        for name in ("crop", "margin", "beside") if "teacher" in stage and stage["teacher"]["media"]["crop"] is None else ():
            del stage["teacher"]["media"][name]
        if stage.get("environment") is not None:
            for name in ("workers", "deadline", "memory", "retries", "ahead", "max_faults"):
                del stage["environment"][name]
    return out


def open_session(cfg: Config, config_hash: str, places: Places, run: RunDir, ui: Ui) -> Session:
    """Processor, media, state and tracker; restores the newest valid checkpoint when there is one."""
    bundle = load_processor(places.model, revision=cfg.model.revision, family=cfg.model.family, max_tiles=cfg.media.max_tiles)
    if problems := unproven(bundle.family, cfg):
        raise ConfigError(problems)
    store, encoder = open_media(cfg, bundle, places.data)
    state, tracker = RunState(), Tracker(run.path, cfg.run.trackers, dist.is_main(), recipe=cfg)
    found = dist.gather(dist.on_main(lambda: checkpoint.latest(run.checkpoints)))[0]
    assert found is not None
    for note in found.notes:
        ui.say(note)
    saved: dict[str, Any] = {}
    if found.path is not None:
        saved = checkpoint.load_state(found.path)
        state.load_state_dict(saved["run"])
        ui.say(f"resuming from {found.path.name}: stage '{cfg.stages[state.stage].name}', step {state.step}")
        written = checkpoint.read_manifest(found.path)["extra"].get("world")
        if written not in (None, dist.world()):
            ui.say(
                f"{found.path.name} was saved by {written} ranks and {dist.world()} go on from it: weights and moments are equal, but sums "
                "are made in another order, so the bits are not those of an uninterrupted run from here on"
            )
        if "identity" not in saved:
            ui.say(f"{found.path.name} was saved by an earlier version: it does not say from which rows and media, so none can be compared")
    tracker.restore(saved.get("metrics_offset", 0), saved.get("metrics_marks"), note=note_of(run, ui))
    used = UsedMedia(
        run.path / INPUTS,
        rank=dist.rank(),
        data_root=places.data,
        accept=cfg.data.changed == "accept",
        note=note_of(run, ui),
        saved=saved.get("media"),
    )
    encoder = replace(encoder, media=used.of(store))
    identity = Identity(folder=run.path)
    if dist.is_main():
        identity = Identity.open(run.path, saved.get("identity"), ui.say)
    tracker.start(state.global_step + 1)  # that of the last step done is logged
    return Session(
        cfg=cfg,
        config_hash=config_hash,
        places=places,
        run=run,
        ui=ui,
        tracker=tracker,
        bundle=bundle,
        store=store,
        encoder=encoder,
        state=state,
        engine=open_engine(cfg.train, pick_device(cfg.model.device), cfg.run.threads),
        share=OPTIONAL["train.sequence"](cfg.train) if cfg.train.sequence > 1 else None,
        identity=identity,
        used=used,
        export_dtype=OPTIONAL["export.dtype"](cfg, files_of(places.model, cfg.model.revision)),
        base=places.model if state.stage == 0 else str(stage_folder(run, cfg, state.stage - 1)),
        restored=found.path,
        background=OPTIONAL["checkpoint.asynchronous"]() if cfg.checkpoint.asynchronous else None,
    )


def note_of(run: RunDir, ui: Ui) -> Callable[[str], None]:
    """Says a line and writes it into the run's history."""

    def note(text: str) -> None:
        ui.say(text)
        if dist.is_main():
            run.note(text)

    return note
