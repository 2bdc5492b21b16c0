"""A run from recipe to report: open the directory, restore, go through the stages, evaluate between them, export, report.

Everything durable that happens here is either a function of the recipe (exports, evaluation records: kept when they are already
there) or in a checkpoint, so the same command after a crash goes on where it was.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vlmrl import __version__, faults, fs, rng
from vlmrl.config.load import Loaded
from vlmrl.config.methods import check_methods
from vlmrl.config.schema import Config, GrpoSection, SftSection, Stage
from vlmrl.data.encode import Encoder
from vlmrl.errors import CheckpointError, ConfigError, StorageError
from vlmrl.evals.quick import evaluate
from vlmrl.media.store import MediaStore
from vlmrl.methods import registries
from vlmrl.policy.load import Policy, ProcessorBundle, freeze, load_policy, load_processor, weights_fingerprint
from vlmrl.policy.vision import VisionCache
from vlmrl.protocols import reward as reward_registry
from vlmrl.protocols import sampler as sampler_registry
from vlmrl.rewards.runner import RewardRunner
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.rollout.journal import drop_before
from vlmrl.train import checkpoint, dist, optim
from vlmrl.train.clock import Clock
from vlmrl.train.export import export, link
from vlmrl.train.feed import Feed
from vlmrl.train.media import open_media
from vlmrl.train.rows import load_rows, quarantine_row
from vlmrl.train.rundir import RunDir, open_run
from vlmrl.train.stage import grpo, sft
from vlmrl.train.stage.base import Reference, StageRun
from vlmrl.train.state import RunState
from vlmrl.train.step import Learner
from vlmrl.train.tensors import load_optimizer, optimizer_tensors, read_tensors, write_tensors
from vlmrl.train.tracking import Tracker
from vlmrl.train.ui import Ui
from vlmrl.types import GenerationSettings, Sample

log = logging.getLogger(__name__)
MAX_FAILED_SAVES = 3
FRAMES_IN_REPORT = 24
"""Held-out questions whose frames are kept for the report."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where model and data really are, after `toy` has been replaced by what it generated."""

    model: str
    data: Path


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
    restored: Path | None = None
    """Checkpoint whose tensors the first stage of this process starts from."""
    failed_saves: int = 0
    clock: Clock = field(default_factory=Clock)
    rows: dict[tuple[str, str], Mapping[str, Sample]] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)
    first_rl_step_logged: bool = False

    def rows_of(self, source: Any, template: str) -> Mapping[str, Sample]:
        """Audited rows of a source, read once per process."""
        key = (source.path, template)
        if key not in self.rows:
            quarantine = self.run.path / "quarantine.jsonl"
            self.rows[key] = load_rows(source, self.cfg.data, self.places.data, template, self.encoder, quarantine=quarantine, ui=self.ui)
        return self.rows[key]


def fixed_options(cfg: Config) -> dict[str, Any]:
    """The part of a config that decides the numbers: it may not change between start and resume. Cadence, caches and display may."""
    out = cfg.model_dump(mode="json")
    for free in ("checkpoint",):
        del out[free]
    for name in ("root", "trackers", "threads"):
        del out["run"][name]
    del out["media"]["cache_bytes"]
    if out["toy"] is not None:
        del out["toy"]["cache"]
    for stage in out["stages"]:
        del stage["checkpoint_every"], stage["micro_tokens"]
    return out


def train_from(loaded: Loaded, places: Places, ui: Ui) -> Path:
    """Run a recipe to its end and return the run directory. The same call resumes an interrupted run.

    Raises:
        VlmrlError: with the exit code of its kind; what was saved stays.
    """
    cfg = loaded.config
    dist.start()
    problems = check_methods(cfg, registries(cfg.plugins))
    if problems:
        raise ConfigError(problems)
    if cfg.run.threads:
        torch.set_num_threads(cfg.run.threads)
    torch.use_deterministic_algorithms(cfg.run.deterministic, warn_only=True)
    main = dist.is_main()
    with open_run(
        cfg.run.root,
        cfg.run.name,
        resolved_config=loaded.text,
        config_hash=loaded.hash,
        fixed=fixed_options(cfg),
        together=dist.together,
        is_main=main,
    ) as run:
        for note in run.notes:
            ui.say(note)
        if run.finished:
            ui.say(f"{run.path} is already finished")
            return run.path
        session = _session(cfg, loaded.hash, places, run, ui)
        try:
            _stages(session)
        finally:
            session.tracker.close()
        dist.on_main(run.finish)
        return run.path


def _session(cfg: Config, config_hash: str, places: Places, run: RunDir, ui: Ui) -> Session:
    """Processor, media, state and tracker; restores the newest valid checkpoint when there is one."""
    bundle = load_processor(places.model, revision=cfg.model.revision)
    store, encoder = open_media(cfg, bundle, places.data)
    state, tracker = RunState(), Tracker(run.path, cfg.run.trackers, dist.is_main())
    found = dist.gather(dist.on_main(lambda: checkpoint.latest(run.checkpoints)))[0]
    assert found is not None
    for note in found.notes:
        ui.say(note)
    if found.path is not None:
        saved = checkpoint.load_state(found.path)
        state.load_state_dict(saved["run"])
        tracker.truncate(saved["metrics_offset"])
        ui.say(f"resuming from {found.path.name}: stage '{cfg.stages[state.stage].name}', step {state.step}")
    else:
        tracker.truncate(0)
    tracker.start(state.global_step)
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
        restored=found.path,
    )


def _stages(s: Session) -> None:
    """Evaluate, then each stage: train, export, evaluate."""
    base = s.places.model if s.state.stage == 0 else str(_stage_folder(s, s.cfg.stages[s.state.stage - 1]))
    policy = load_policy(
        base, s.bundle, device=s.cfg.model.device, dtype=s.cfg.model.dtype, attention=s.cfg.model.attention, revision=s.cfg.model.revision
    )
    vision = VisionCache(s.store, budget_bytes=s.cfg.media.cache_bytes)
    policy.version = s.state.policy_version
    if s.cfg.model.gradient_checkpointing:
        policy.model.gradient_checkpointing_enable({"use_reentrant": False})
    if s.state.stage == 0 and s.cfg.eval.at_start:
        if s.state.step == 0:
            _evaluate(s, "base", policy, vision)
        else:
            _remember_stage(s, "base")
    for index in range(s.state.stage, len(s.cfg.stages)):
        cfg = s.cfg.stages[index]
        if s.state.stage != index:
            s.state.start_stage(index)
        _train_stage(s, cfg, base, policy, vision)
        with s.clock.phase("export"):
            folder = _stage_folder(s, cfg)
            dist.on_main(lambda folder=folder: export(policy, folder))
        faults.point("stage.exported")
        _evaluate(s, cfg.name, policy, vision)
        faults.point("stage.finished")
        base, s.restored = str(folder), None
    dist.on_main(lambda: link(Path(base), s.run.path / "final"))
    _log_phases(s, "end")


def _stage_folder(s: Session, cfg: Stage) -> Path:
    return s.run.path / "stages" / cfg.name


def _train_stage(s: Session, cfg: Stage, base: str, policy: Policy, vision: VisionCache) -> None:
    """Build what the stage needs, restore it if this process resumes inside it, and run it."""
    faults.point("stage.started")
    samples = s.rows_of(cfg.source, cfg.template)
    named = freeze(policy, cfg.freeze)
    optimizer, order = optim.build(named, cfg.optim)
    is_rl = isinstance(cfg, GrpoSection)
    learner = Learner(
        policy=policy,
        vision=vision,
        optimizer=optimizer,
        named=named,
        max_grad_norm=cfg.optim.max_grad_norm,
        micro_tokens=s.state.micro_tokens or cfg.micro_tokens,
        layout=cfg.forward if isinstance(cfg, GrpoSection) else "repeat",
        temperature=cfg.rollout.temperature if isinstance(cfg, GrpoSection) else 1.0,
        forbidden=s.bundle.forbidden_ids if is_rl else (),
    )
    rewards = _rewards(s, cfg, samples) if isinstance(cfg, GrpoSection) else None
    name, arguments = (cfg.sampler.name, cfg.sampler.arguments) if isinstance(cfg, GrpoSection) else ("uniform", {})
    sampler = sampler_registry.bind(name, arguments)(list(samples), rng.key(s.cfg.run.seed, "stage", cfg.name))
    if s.state.sampler is not None:
        sampler.load_state_dict(s.state.sampler)
    if rewards is not None and s.state.rewards is not None:
        rewards.load_state_dict(s.state.rewards)
    if s.restored is not None and s.state.step > 0:
        _restore_tensors(s.restored, learner, order)
    quarantine = s.run.path / "quarantine.jsonl"
    stage = StageRun(
        name=cfg.name,
        seed=s.cfg.run.seed,
        state=s.state,
        policy=policy,
        learner=learner,
        feed=Feed(
            samples=samples,
            encoder=s.encoder,
            sampler=sampler,
            template=cfg.template,
            max_bad=s.cfg.data.max_bad_rows,
            bad=s.state.bad_media,
            quarantine=lambda sample, reason, message: quarantine_row(quarantine, sample, reason, message),
        ),
        store=s.store,
        rewards=rewards,
        reference=_reference(s, cfg, base, vision),
        journal_dir=s.run.journal,
        checkpoint_every=cfg.checkpoint_every or s.cfg.checkpoint.every,
        log=lambda values: _log_step(s, cfg, values),
        save=lambda: _save(s, learner, order, sampler, rewards),
        stop_requested=lambda: s.run.stop_requested,
        progress=lambda values: None,
        steps=cfg.steps,
    )
    with s.ui.bar(f"{cfg.kind} {cfg.name}", cfg.steps, done=s.state.step) as bar:
        shown = ("reward", "loss", "completions/mean_length", "completions/think_rate", "grad_norm")
        stage.progress = lambda values: bar.update(s.state.step, {k.split("/")[-1]: values[k] for k in shown if k in values})
        if isinstance(cfg, SftSection):
            sft.train(stage, cfg)
        else:
            grpo.train(stage, cfg)


def _rewards(s: Session, cfg: GrpoSection, samples: Mapping[str, Sample]) -> RewardRunner:
    """The reward columns, tried on gold and junk answers before anything is generated."""
    runner = RewardRunner(
        [(r.name, r.weight, reward_registry.bind(r.name, r.arguments)) for r in cfg.rewards], max_invalid=cfg.max_invalid_rewards
    )
    first = list(samples.values())[:64]
    problems = runner.self_test(first, cfg.template)
    if problems:
        raise ConfigError([f"stage '{cfg.name}': {problem}" for problem in problems])
    return runner


def _reference(s: Session, cfg: Stage, base: str, vision: VisionCache) -> Reference | None:
    """The stage's starting weights, kept only where the loss needs them. A tower that does not train shares its features."""
    if not isinstance(cfg, GrpoSection) or cfg.beta == 0:
        return None
    m = s.cfg.model
    policy = load_policy(base, s.bundle, device=m.device, dtype=m.dtype, attention=m.attention, revision=m.revision)
    policy.model.requires_grad_(False)
    return Reference(policy=policy, vision=VisionCache(s.store, budget_bytes=s.cfg.media.cache_bytes))


def _restore_tensors(path: Path, learner: Learner, order: list[str]) -> None:
    """Weights that train and optimizer moments, strictly by name."""
    weights = read_tensors(path / "weights.safetensors")
    parameters = dict(learner.named)
    if set(weights) != set(parameters):
        raise CheckpointError(f"{path}: its weights are not those that this stage trains (freeze or model changed)")
    with torch.no_grad():
        for name, value in weights.items():
            parameters[name].copy_(value)
    learner.policy.vision_version += 1
    state = json.loads((path / "optimizer.json").read_text(encoding="utf-8"))
    load_optimizer(learner.optimizer, order, read_tensors(path / "optimizer.safetensors"), state)


def _save(s: Session, learner: Learner, order: list[str], sampler: Any, rewards: RewardRunner | None) -> None:
    """Write a checkpoint. A full disk is survived a few times; the run goes on with the older one.

    Raises:
        StorageError: several saves in a row failed.
    """
    s.state.sampler = sampler.state_dict()
    s.state.rewards = None if rewards is None else rewards.state_dict()

    def tensors(folder: Path) -> None:
        moments, groups = optimizer_tensors(learner.optimizer, order)
        write_tensors(folder / "weights.safetensors", dict(learner.named))
        write_tensors(folder / "optimizer.safetensors", moments)
        fs.write_text(folder / "optimizer.json", json.dumps(groups, sort_keys=True))

    try:
        offset = dist.on_main(s.tracker.offset) or 0
        checkpoint.save(
            s.run.checkpoints,
            step_name=checkpoint.step_name(s.state.global_step),
            write_tensors=tensors,
            state={"run": s.state.state_dict(), "metrics_offset": offset},
            manifest_extra={"config": s.config_hash, "version": __version__, "world": dist.world(), "step": s.state.global_step},
            keep=s.cfg.checkpoint.keep,
            together=dist.together,
            is_main=dist.is_main(),
        )
    except (StorageError, dist.RankFailed) as error:
        s.failed_saves += 1
        if s.failed_saves >= MAX_FAILED_SAVES:
            raise
        s.ui.say(f"checkpoint not saved ({s.failed_saves} of {MAX_FAILED_SAVES} failures in a row allowed): {error}")
        return
    s.failed_saves = 0
    dist.on_main(lambda: drop_before(s.run.journal, s.state.global_step))


def _log_step(s: Session, cfg: Stage, values: dict[str, float]) -> None:
    if isinstance(cfg, GrpoSection) and not s.first_rl_step_logged:
        s.first_rl_step_logged = True
        values = values | {"time/to_first_rl_step": time.perf_counter() - s.began}
    s.tracker.log(values, stage=cfg.name, step=s.state.step, global_step=s.state.global_step)


def _log_phases(s: Session, where: str) -> None:
    """What the run spent outside of steps since the last such line."""
    s.tracker.log(s.clock.metrics(), stage="run", step=s.state.step, global_step=s.state.global_step)
    log.debug("phases logged at %s", where)
    s.clock = Clock()


def _remember_stage(s: Session, name: str) -> None:
    """Keep the order in which stages were evaluated, for tables and the report."""
    path = s.run.eval / "order.json"
    names = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    if name not in names:
        fs.write_text(path, json.dumps([*names, name]))


def _evaluate(s: Session, name: str, policy: Policy, vision: VisionCache) -> None:
    """Greedy answers on the held-out rows; records that are already there are not generated again."""
    source = s.cfg.eval.source
    if source is None:
        return
    template = s.cfg.stages[-1].template
    samples = list(s.rows_of(source, template).values())[: s.cfg.eval.limit]
    with s.clock.phase("evaluate"):
        dist.on_main(lambda: _evaluate_main(s, name, samples, template, policy, vision))
    values = {"eval/rows": float(len(samples))} | _eval_metrics(s, name)
    s.tracker.log(values, stage=name, step=s.state.step, global_step=s.state.global_step)


def _evaluate_main(s: Session, name: str, samples: list[Sample], template: str, policy: Policy, vision: VisionCache) -> None:
    from vlmrl.evals.runfiles import save_frames

    prompts = [s.encoder.encode(sample, template) for sample in samples]
    with s.ui.bar(f"evaluate {name}", len(prompts)) as bar:
        evaluate(
            engine=HFEngine(policy, vision),
            prompts=prompts,
            settings=GenerationSettings(max_new_tokens=s.cfg.eval.max_new_tokens, temperature=0.0),
            fingerprint=weights_fingerprint(policy),
            out=s.run.eval / f"{name}.jsonl",
            stage=name,
            batch_prompts=s.cfg.eval.batch_prompts,
            tokenizer_len=lambda text: len(s.bundle.tokenize(text)),
            progress=lambda done, total: bar.update(done),
        )
    _remember_stage(s, name)
    for prompt in prompts[:FRAMES_IN_REPORT]:
        for handle in prompt.media[:1]:
            media = s.store.get_key(handle.key)
            sample = prompt.sample
            save_frames(
                s.run.path,
                sample.id,
                frames=media.frames,
                times=media.times,
                question=sample.question,
                gold=sample.gt.get("time"),
                duration=media.duration,
            )


def _eval_metrics(s: Session, name: str) -> dict[str, float]:
    """Means of a stage's records, under `eval/`."""
    from vlmrl.evals.records import read_records
    from vlmrl.evals.summary import summarize

    if not dist.is_main():
        return {}
    summary = summarize(read_records(s.run.eval / f"{name}.jsonl"), seed=s.cfg.run.seed)
    return {f"eval/{metric}": value for metric, value in summary.means().items() if value is not None}
