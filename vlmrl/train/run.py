"""A run from recipe to report: open the directory, restore, go through the stages, evaluate between them, export, report.

Everything durable that happens here is either a function of the recipe (exports, evaluation records: kept when they are already
there) or in a checkpoint, so the same command after a crash goes on where it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vlmrl import STARTED, __version__, faults, fs, rng
from vlmrl.config.combinations import doubts
from vlmrl.config.load import Loaded
from vlmrl.config.methods import check_methods
from vlmrl.config.schema import GrpoSection, SftSection, Stage
from vlmrl.errors import CheckpointError, ConfigError, StorageError
from vlmrl.methods import registries
from vlmrl.policy.attention import require
from vlmrl.policy.load import freeze, load_policy, quiet_transformers
from vlmrl.policy.lora import add_adapters, fold_adapters
from vlmrl.policy.model import LoraSpec, Policy
from vlmrl.policy.vision import VisionCache
from vlmrl.policy.vision_disk import FeatureStore
from vlmrl.protocols import budget as budget_registry
from vlmrl.protocols import sampler as sampler_registry
from vlmrl.rewards.remote.services import Services, services
from vlmrl.rewards.remote.services import session as services_of_run
from vlmrl.rewards.remote.throttle import Timing
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.rollout.journal import drop_before
from vlmrl.sampling.info import describe
from vlmrl.sampling.ledger import Ledger
from vlmrl.train import checkpoint, dist, optim
from vlmrl.train.balance import cost
from vlmrl.train.columns import reward_runner
from vlmrl.train.evaluate import eval_problems, evaluate_stage, remember_stage
from vlmrl.train.export import export, link
from vlmrl.train.feed import Feed
from vlmrl.train.memory import FILE as MEMORIES
from vlmrl.train.memory import Memories
from vlmrl.train.prefetch import Prefetcher
from vlmrl.train.profile import StageProfiler
from vlmrl.train.results import show_results
from vlmrl.train.rows import quarantine_row
from vlmrl.train.rundir import open_run
from vlmrl.train.session import Places, Session, fixed_options, open_session
from vlmrl.train.stage import grpo, providers, sft  # noqa: F401 (registers the providers)
from vlmrl.train.stage.algorithm import Algorithm
from vlmrl.train.stage.base import Reference, StageRun
from vlmrl.train.stage.provide import Providers
from vlmrl.train.step import Learner
from vlmrl.train.tensors import load_optimizer, optimizer_tensors, read_tensors, write_tensors
from vlmrl.train.ui import Ui
from vlmrl.types import PlannedPrompt, Sample

MAX_FAILED_SAVES = 3


def train_from(loaded: Loaded, places: Places, ui: Ui, *, profile_steps: int = 0) -> Path:
    """Run a recipe to its end and return the run directory. The same call resumes an interrupted run.

    With `profile_steps`, that many steps of each stage are traced (`train.profile`); what is trained stays the same.

    Raises:
        VlmrlError: with the exit code of its kind; what was saved stays.
    """
    cfg = loaded.config
    dist.start()
    problems = [*check_methods(cfg, registries(cfg.plugins)), *eval_problems(cfg)]
    if problems:
        raise ConfigError(problems)
    for text in doubts(cfg):
        ui.say(f"warning: {text}")
    quiet_transformers()
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
            dist.on_main(lambda: show_results(run.path, ui))
            return run.path
        session = open_session(cfg, loaded.hash, places, run, ui)
        session.profile_steps = profile_steps
        judges = Services(run.path / "judges", rank=dist.rank(), timing=Timing(stop=lambda: run.stop_requested))
        try:
            with services_of_run(judges):
                _stages(session)
        finally:
            session.tracker.close()
            session.store.close()
        dist.on_main(run.finish)
        dist.on_main(lambda: show_results(run.path, ui))
        return run.path


def _stages(s: Session) -> None:
    """Evaluate, then each stage: train, export, evaluate."""
    base = s.places.model if s.state.stage == 0 else str(_stage_folder(s, s.cfg.stages[s.state.stage - 1]))
    with s.clock.phase("load"):
        policy = _load(s, base)
    s.ui.say(f"attention over packed rows: {policy.prefix_backend} ({policy.prefix_reason})")
    vision = _vision(s)
    policy.version = s.state.policy_version
    if s.cfg.model.gradient_checkpointing:
        policy.model.gradient_checkpointing_enable({"use_reentrant": False})
    if s.state.stage == 0 and s.cfg.eval.at_start:
        if s.state.step == 0:
            evaluate_stage(s, "base", policy, vision)
        else:
            remember_stage(s, "base")
    for index in range(s.state.stage, len(s.cfg.stages)):
        cfg = s.cfg.stages[index]
        if s.state.stage != index:
            s.state.start_stage(index)
        _train_stage(s, cfg, base, policy, vision)
        with s.clock.phase("export"):
            folder = _stage_folder(s, cfg)
            dist.on_main(lambda folder=folder: export(policy, folder))
            fold_adapters(policy)  # from here on the live weights are those of the folder
        faults.point("stage.exported")
        evaluate_stage(s, cfg.name, policy, vision)
        faults.point("stage.finished")
        base, s.restored = str(folder), None
    dist.on_main(lambda: link(Path(base), s.run.path / "final"))
    s.tracker.log(s.clock.metrics(), stage="run", step=s.state.step, global_step=s.state.global_step)


def _load(s: Session, path: str) -> Policy:
    m = s.cfg.model
    return load_policy(
        path,
        s.bundle,
        device=m.device,
        dtype=m.dtype,
        attention=m.attention,
        revision=m.revision,
        positions=m.positions,
        prefix_backend=m.prefix_backend,
    )


def _vision(s: Session) -> VisionCache:
    m = s.cfg.media
    disk = FeatureStore(Path(m.vision_cache_dir).expanduser(), budget_bytes=m.vision_cache_bytes) if m.vision_cache_dir else None
    return VisionCache(s.store, budget_bytes=m.cache_bytes, disk=disk)


def _stage_folder(s: Session, cfg: Stage) -> Path:
    return s.run.path / "stages" / cfg.name


def _train_stage(s: Session, cfg: Stage, base: str, policy: Policy, vision: VisionCache) -> None:
    """Build what the stage needs, restore it if this process resumes inside it, and run it."""
    faults.point("stage.started")
    rows = s.rows_of(cfg.source, cfg.answer_format)
    samples = rows.samples
    if cfg.forward == "shared_prefix":
        require(policy.model.config.get_text_config())
    _add_adapters(s, cfg, base, policy)
    named = freeze(policy, cfg.freeze)
    algorithm = Algorithm.of(cfg) if isinstance(cfg, GrpoSection) else None
    optimizer, order = optim.build(named, cfg.optim)
    learner = _learner(s, cfg, policy, vision, named, optimizer)
    learner.entropy_gradient = algorithm is not None and algorithm.needs("entropy_BT")
    with s.clock.phase("audit"):
        rewards = _rewards(s, cfg, samples) if isinstance(cfg, GrpoSection) else None
    name, arguments = (cfg.sampler.name, cfg.sampler.arguments) if isinstance(cfg, GrpoSection) else ("uniform", {})
    make_sampler = partial(sampler_registry.bind(name, arguments), _about(name, samples), rng.key(s.cfg.run.seed, "stage", cfg.name))
    memories = _memories(s)
    sampler = memories.keep("sampler", make_sampler())
    if rewards is not None:
        memories.keep("rewards", rewards)
    if s.restored is not None and s.state.step > 0:
        with s.clock.phase("load"):
            _restore_tensors(s.restored, learner, order)
    quarantine = s.run.path / "quarantine.jsonl"
    used = Providers() if algorithm is None else Providers.of(algorithm.methods())
    reference = _reference(s, cfg, algorithm, used, base, policy, vision)
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
            answer_format=cfg.answer_format,
            max_bad=s.cfg.data.max_bad_rows,
            bad=s.state.bad_media,
            cost=_cost(policy, rows.prompt_tokens),
            quarantine=lambda sample, reason, message: quarantine_row(quarantine, sample, reason, message),
            budget=budget_registry.bind(cfg.budget.name, cfg.budget.arguments) if isinstance(cfg, GrpoSection) else None,
            prefetcher=Prefetcher(s.store, make_sampler()) if s.cfg.media.prefetch else None,
        ),
        store=s.store,
        rewards=rewards,
        reference=reference,
        memories=memories,
        providers=used,
        journal_dir=s.run.journal,
        checkpoint_every=cfg.checkpoint_every or s.cfg.checkpoint.every,
        log=lambda values: _log_step(s, cfg, values),
        save=lambda: _save(s, learner, order, memories),
        stop_requested=lambda: s.run.stop_requested,
        progress=lambda values: None,
        steps=cfg.steps,
        evaluate=lambda clock: evaluate_stage(s, f"{cfg.name}@{s.state.step}", policy, vision, clock),
        evaluate_every=s.cfg.eval.every,
        profiler=_profiler(s, cfg, policy),
        warn=lambda text: s.ui.say(f"warning: {cfg.name} step {s.state.step}: {text}"),
    )
    with s.ui.bar(f"{cfg.kind} {cfg.name}", cfg.steps, done=s.state.step) as bar, stage.running():
        shown = ("reward", "loss", "completions/mean_length", "completions/think_rate", "grad_norm")
        stage.progress = lambda values: bar.update(s.state.step, {k.split("/")[-1]: values[k] for k in shown if k in values})
        if isinstance(cfg, SftSection):
            memories.complete()
            sft.train(stage, cfg)
        else:
            assert algorithm is not None
            algorithm.keep(memories)
            collector = stage.collector(cfg, algorithm)
            used.start(stage)
            memories.complete()
            grpo.train(stage, cfg, algorithm, collector)


def _learner(
    s: Session,
    cfg: Stage,
    policy: Policy,
    vision: VisionCache,
    named: list[tuple[str, torch.nn.Parameter]],
    optimizer: torch.optim.Optimizer,
) -> Learner:
    is_rl = isinstance(cfg, GrpoSection)
    return Learner(
        policy=policy,
        vision=vision,
        optimizer=optimizer,
        named=named,
        max_grad_norm=cfg.optim.max_grad_norm,
        max_tokens_per_microbatch=s.state.max_tokens_per_microbatch or cfg.max_tokens_per_microbatch,
        layout=cfg.forward,
        temperature=cfg.rollout.temperature if isinstance(cfg, GrpoSection) else 1.0,
        forbidden=s.bundle.forbidden_ids if is_rl else (),
        checkpointing=s.cfg.model.gradient_checkpointing,
    )


def _about(sampler: str, samples: Mapping[str, Sample]) -> Sequence[Any]:
    """What a sampler chooses from: the ids, or what is known of each row where it asks for that."""
    if "rows" in sampler_registry.get(sampler).extra.get("needs", ()):
        return [describe(sample) for sample in samples.values()]
    return list(samples)


def _cost(policy: Policy, prompt_tokens: Mapping[str, int]) -> Callable[[PlannedPrompt, Ledger], float]:
    """Work of a planned group, from its prompt's length and what the ledger knows of its answers."""
    hidden = int(policy.model.config.get_text_config().hidden_size)

    def of(wish: PlannedPrompt, ledger: Ledger) -> float:
        length = ledger.row(wish.sample_id).mean_length or 0.0
        return cost(prompt_tokens[wish.sample_id], wish.num_generations, length, hidden=hidden)

    return of


def _profiler(s: Session, cfg: Stage, policy: Policy) -> StageProfiler | None:
    if not s.profile_steps:
        return None
    return StageProfiler(s.run.path / "profile", cfg.name, steps=s.profile_steps, device=policy.device, say=s.ui.say)


def _add_adapters(s: Session, cfg: Stage, base: str, policy: Policy) -> None:
    """Fresh adapters for a stage, from coordinates of the run, so that a resumed process starts from the same ones."""
    m = s.cfg.model.lora
    if m is not None:
        spec = LoraSpec(rank=m.rank, alpha=m.alpha, targets=m.targets, vision=m.vision)
        add_adapters(policy, spec, seed_of=lambda layer: rng.key(s.cfg.run.seed, "lora", cfg.name, layer), base=base)


def _rewards(s: Session, cfg: GrpoSection, samples: Mapping[str, Sample]) -> RewardRunner:
    """The reward columns, tried on gold and junk answers before anything is generated."""
    runner = reward_runner(cfg, s.cfg.plugins)
    try:
        problems = runner.self_test(list(samples.values())[:64], cfg.answer_format)
        if problems:
            raise ConfigError([f"stage '{cfg.name}': {problem}" for problem in problems])
    except BaseException:
        runner.close()
        raise
    return runner


def _memories(s: Session) -> Memories:
    """What the last checkpoint holds of the stage that this process resumes in."""
    path = None if s.restored is None else s.restored / MEMORIES
    return Memories(s.state.memories, read_tensors(path) if path is not None and path.exists() else None)


def _reference(
    s: Session, cfg: Stage, algorithm: Algorithm | None, used: Providers, base: str, trained: Policy, vision: VisionCache
) -> Reference | None:
    """The stage's starting weights, kept only where the loss or the log needs them. A tower that does not train shares its features.

    With adapters they are in memory already, under the adapters."""
    if not isinstance(cfg, GrpoSection) or algorithm is None or not needs_reference(cfg, algorithm, used):
        return None
    if trained.lora is not None:
        own = VisionCache(s.store, budget_bytes=s.cfg.media.cache_bytes) if trained.vision_trains else vision
        return Reference(policy=trained.without_adapters(), vision=own)
    with s.clock.phase("load"):
        policy = _load(s, base)
    policy.model.requires_grad_(False)
    if trained.vision_trains:
        return Reference(policy=policy, vision=_vision(s))
    # the same tower on both sides: one set of features
    policy.vision_version = trained.vision_version
    return Reference(policy=policy, vision=vision)


def needs_reference(cfg: GrpoSection, algorithm: Algorithm, used: Providers) -> bool:
    """Whether a stage compares with its starting weights: in the loss, for a constraint that steers its weight, for a need of a method,
    or for the log."""
    steered = bool(algorithm.acting_on("beta"))
    return cfg.beta > 0 or cfg.kl_every > 0 or steered or used.reference or algorithm.needs("logp_ref_BT")


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


def _save(s: Session, learner: Learner, order: list[str], memories: Memories) -> None:
    """Write a checkpoint. A full disk is survived a few times; the run goes on with the older one.

    Raises:
        StorageError: several saves in a row failed.
    """
    s.state.memories = memories.state_dict()
    remembered = memories.tensors()

    def tensors(folder: Path) -> None:
        moments, groups = optimizer_tensors(learner.optimizer, order)
        write_tensors(folder / "weights.safetensors", dict(learner.named))
        write_tensors(folder / "optimizer.safetensors", moments)
        if remembered:
            write_tensors(folder / MEMORIES, remembered)
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
        values = values | {"time/to_first_rl_step": time.perf_counter() - STARTED}
    s.tracker.log(values | services().read(), stage=cfg.name, step=s.state.step, global_step=s.state.global_step)
