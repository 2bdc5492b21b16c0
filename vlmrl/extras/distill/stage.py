"""The stages with a teacher: `distill` is the step of `grpo` with its scores, `teacher_sft` that of `sft` on its answers."""

from __future__ import annotations

import dataclasses
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from vlmrl import fs, rng
from vlmrl.config.schema import Config
from vlmrl.data.encode import Encoder
from vlmrl.errors import ConfigError
from vlmrl.extras.distill.answers import teacher_rows
from vlmrl.extras.distill.crop import Crop, MarkedEncoder, WatchedCrops, store_of
from vlmrl.extras.distill.methods.scores import DIVERGENCE, TOPK, K, scores_of
from vlmrl.extras.distill.section import AVERAGE, LIKELIEST, OFF, SAMPLED, WHOLE, DistillSection, Imitate, Taught, TeacherSection
from vlmrl.extras.distill.server import ServedTeacher, open_servers
from vlmrl.extras.distill.teacher import Scores, Teacher, TeacherJsd, TeacherScores, fingerprint_of
from vlmrl.extras.distill.topk import Chosen, TopKDivergence
from vlmrl.extras.distill.turns import TURNS, TurnsView
from vlmrl.extras.distill.view import BothViews, SeenRecord, TeacherView, settings_of, vocabulary_problem
from vlmrl.media.store import MediaStore
from vlmrl.policy.load import load_processor
from vlmrl.policy.model import ProcessorBundle
from vlmrl.policy.vision import VisionCache
from vlmrl.run.build import open_grpo, run_grpo
from vlmrl.run.loop import Loop
from vlmrl.run.open_stage import open_stage
from vlmrl.run.session import Session
from vlmrl.train import dist
from vlmrl.train.stage.base import Stage, StepResult
from vlmrl.train.stage.sft import learn_rows

FOLDER = "teacher"
"""Folder of a run with what the teacher saw."""


def distill(session: Session, cfg: DistillSection) -> None:
    """Train on answers of the policy and what a teacher says of each token.

    Raises:
        ConfigError: the teacher cannot be used here, or has another tokenizer.
    """
    if problems := refused(session.cfg, cfg):
        raise ConfigError(problems)
    loop, algorithm = open_grpo(session, cfg, reference=cfg.teacher.at_hand, moves=cfg.teacher.moves)
    scores = scores_of(loop.stage)
    teacher = open_teacher(loop, cfg)
    scores.attach(teacher, teacher.servers.fingerprint if isinstance(teacher, ServedTeacher) else fingerprint_of(cfg.teacher))
    if cfg.teacher.moves:
        scores.follow(loop.stage, cfg.teacher.average.every, cfg.teacher.average.decay)
    for method in cfg.auxiliary_losses:
        if method.name == WHOLE:
            scores.beta = float(method.arguments.get("beta", 0.5))
            stat = TeacherJsd(scores=scores, beta=scores.beta)
            loop.stage.learner.stats = {**loop.stage.learner.stats, DIVERGENCE: stat}
        if method.name == LIKELIEST:
            ids = max(session.bundle.tokenizer.get_vocab().values()) + 1
            scores.chosen = Chosen(k=int(method.arguments.get("k", K)), ids=ids)
            loop.stage.learner.stats = {**loop.stage.learner.stats, TOPK: TopKDivergence(chosen=scores.chosen)}
    run_grpo(loop, cfg, algorithm)


def teacher_sft(session: Session, cfg: Imitate) -> None:
    """Train on answers of the teacher (sequence-level distillation, arXiv:1606.07947).

    Raises:
        ConfigError: the teacher cannot be used here, or has another tokenizer.
    """
    if problems := refused(session.cfg, cfg):
        raise ConfigError(problems)
    loop = open_stage(session, cfg, reference=cfg.teacher.at_hand, sampler=cfg.sampler, budget=cfg.budget)
    scores = loop.memories.keep("teacher", TeacherScores())
    scores.attach(open_teacher(loop, cfg), fingerprint_of(cfg.teacher))
    loop.run(partial(imitate_step, loop.stage, cfg, scores))


def imitate_step(stage: Stage, cfg: Imitate, scores: TeacherScores) -> StepResult:
    """Make one step: plan, encode, have the teacher answer, update."""
    rng.seed_step(stage.seed, cfg.name, stage.state.step)
    return learn_rows(stage, teacher_rows(scores, stage, cfg))


def refused(cfg: Config, stage: Taught) -> list[str]:
    """What the stage cannot do under the rest of its recipe."""
    where, out = f"stages.{stage.name}.teacher", list[str]()
    if stage.teacher.weights == OFF and cfg.model.lora is None:
        out.append(f"{where}.weights: {OFF} is what lies under the adapters of model.lora, and there is no model.lora; take start")
    if stage.teacher.moves and cfg.model.lora is not None:
        out.append(
            f"{where}.weights: {AVERAGE} needs weights of its own, and with model.lora the teacher has those under the adapters; take start"
        )
    if stage.teacher.moves and cfg.train.sharding == "zero3":
        out.append(f"{where}.weights: {AVERAGE} changes weights in place, and zero3 has none whole; take train.sharding: fsdp or zero2")
    listed = [method.name for method in stage.auxiliary_losses] if isinstance(stage, DistillSection) else []
    for name, what in ((WHOLE, "beta"), (LIKELIEST, "k")):
        if name in listed and cfg.train.sequence > 1:
            out.append(
                f"stages.{stage.name}.auxiliary_losses: {name} compares hidden states of a row, which lie on {cfg.train.sequence} ranks "
                f"with train.sequence; take train.sequence: 1, or {SAMPLED}"
            )
        if listed.count(name) > 1:
            out.append(f"stages.{stage.name}.auxiliary_losses: {name} is listed twice; one {what} alone can be taken")
    return out


def open_teacher(loop: Loop, cfg: Taught) -> Scores:
    """Load the teacher, meet its servers, or take the stage's starting weights, and say what it sees.

    Raises:
        ConfigError: it cannot be loaded, or has another tokenizer.
        DataError: it sees a crop, and rows have no box or ask for coordinates.
    """
    session, stage = loop.session, loop.stage
    bundle = session.bundle
    policy, vision = session.policy, session.vision
    if cfg.teacher.at_hand:
        assert stage.reference is not None
        policy, vision = stage.reference.policy, stage.reference.vision
    elif not cfg.teacher.served:
        bundle = teacher_bundle(cfg.teacher, session.bundle)
        # the recipe's settings for a model of its own: `revision` and `quantize` are of model.path
        model = session.cfg.model.model_copy(update={"revision": None})
        own = dataclasses.replace(session, cfg=session.cfg.model_copy(update={"model": model}), bundle=bundle)
        with session.clock.phase("load"):
            policy = own.load_policy(cfg.teacher.weights, trains=())
            policy.model.requires_grad_(False)
            session.engine.wrap(policy)
        vision = VisionCache(stage.store, budget_bytes=session.cfg.media.cache_bytes)
    crop = Crop.of(cfg.teacher.media)
    if crop is not None:
        crop.check(stage.loader.samples.values())
    alike = bundle.fingerprint == session.bundle.fingerprint and settings_of(stage.store.settings, cfg.teacher) == stage.store.settings
    store = stage.store if alike and crop is None else store_of(settings_of(stage.store.settings, cfg.teacher), bundle, crop)
    if store is not stage.store:
        loop.ends.callback(store.close)
        vision = VisionCache(store, budget_bytes=session.cfg.media.cache_bytes)
        if cfg.environment is None:  # else what is shown are screens, which no row knows
            # of the rows of the stage alone: held-out rows are never shown to the teacher
            both, encoder = session.used.of(BothViews(stage.store, store)), stage.loader.encoder
            stage.loader.encoder = dataclasses.replace(encoder, media=both) if crop is None else MarkedEncoder.like(encoder, crop, both)
            if stage.loader.prefetcher is not None:
                stage.loader.prefetcher.beside = store
    record_settings(loop, cfg, stage.store, store)
    record = SeenRecord.of(session.run.path / FOLDER / f"{cfg.name}.rank-{dist.rank()}.jsonl")
    label = f"{FOLDER}/{cfg.name}/"
    watched = session.used.of(store, label) if crop is None else WatchedCrops(session.used, store, label)
    encoder = encoder_of(bundle, watched, session.encoder.data_root, session.cfg)
    view = TeacherView(encoder=encoder, store=store, own=stage.store, hint=cfg.teacher.hint, crop=crop, seen=record)
    turns = None
    if cfg.environment is not None:
        # a screen is named by its content, which needs no watching
        again = TURNS["again"](loop, lambda folder: encoder_of(bundle, store, folder, session.cfg))
        turns = TurnsView(again=again, view=dataclasses.replace(view, encoder=again.encoder), record=record)
    if not cfg.teacher.served:
        return Teacher(policy=policy, vision=vision, view=view, turns=turns)
    with session.clock.phase("load"):
        servers, facts = open_servers(cfg.teacher, policy, store, stop=lambda: session.run.stop_requested)
    loop.ends.callback(servers.close)
    session.ui.say(f"teacher: {facts['architecture']} in {facts['dtype']} on {len(cfg.teacher.servers)} server(s)")
    return ServedTeacher(view=view, turns=turns, servers=servers)


def encoder_of(bundle: ProcessorBundle, media: Any, data: Path, cfg: Config) -> Encoder:
    """Make the encoder of the teacher's prompts. They have no bound: what is too long for the policy was left out already."""
    return Encoder.of(bundle, media, data, max_prompt_tokens=sys.maxsize, prompt=cfg.data.prompt)


def teacher_bundle(teacher: TeacherSection, own: ProcessorBundle) -> ProcessorBundle:
    """Load the teacher's processor, and compare the tokenizers id by id.

    Raises:
        ConfigError: it is not there, or an id means something else.
    """
    bundle = load_processor(teacher.weights)
    if problem := vocabulary_problem(own.tokenizer, bundle.tokenizer):
        raise ConfigError(f"teacher.weights '{teacher.weights}': {problem}")
    return bundle


def record_settings(loop: Loop, cfg: Taught, own: MediaStore, other: MediaStore) -> None:
    """Write how both sides see media into the run's folder."""
    if not dist.is_main():
        return
    sides = {"student": own, "teacher": other}
    free = ("cache_bytes", "workers", "deadline")  # which change nothing that is seen
    facts = {name: {k: v for k, v in dataclasses.asdict(one.settings).items() if k not in free} for name, one in sides.items()}
    facts["teacher"] |= {"weights": cfg.teacher.weights, "hint": cfg.teacher.hint}
    if crop := Crop.of(cfg.teacher.media):
        facts["teacher"]["crop"] = dataclasses.asdict(crop)
    path = loop.session.run.path / FOLDER / f"{cfg.name}.json"
    fs.mkdir(path.parent)
    fs.write_text(path, json.dumps(facts, indent=2) + "\n")
