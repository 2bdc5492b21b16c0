"""Evaluation between and within stages: answers to held-out rows and to suites, kept as records, with frames for the report.

The reference engine answers, whatever `rollout.engine` is, so that the numbers of all stages are of one engine; all ranks share the
questions. Nothing of training changes: no random state, no flag of the model. An evaluation that fails is reported and counted
(`eval/failed`), and training goes on; the end of the run names it again (`results.check_evaluations`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path

import torch

from vlmrl import fs
from vlmrl.config.schema import Config, RolloutStage, StageBase
from vlmrl.config.stages import UntilSection
from vlmrl.errors import CheckpointError, Preempted, VlmrlError
from vlmrl.evals.ask.engines import LocalEngine
from vlmrl.evals.ask.evaluate import EvalOptions, evaluate
from vlmrl.evals.ask.models import open_store
from vlmrl.evals.ask.run import eval_options, task_prompts
from vlmrl.evals.ask.suite import Suite, data_root_of, load_suite, suite_path
from vlmrl.evals.ask.tasks import EPISODES, other_wording
from vlmrl.evals.page import PAGES
from vlmrl.evals.score.measures import LABELS, main_score
from vlmrl.evals.score.records import REFERENCE, Record
from vlmrl.evals.score.summary import summarize
from vlmrl.policy.fingerprint import weights_fingerprint
from vlmrl.policy.model import Policy
from vlmrl.policy.vision import VisionCache
from vlmrl.registry import nearest
from vlmrl.rollout.own import own_engine
from vlmrl.run.about import about
from vlmrl.run.export import export
from vlmrl.run.session import Session
from vlmrl.train import dist
from vlmrl.train.meter import Clock
from vlmrl.types import GenerationSettings, Prompt

Stop = Callable[[], bool] | None
"""Whether an evaluation has had its time."""


def eval_problems(cfg: Config) -> list[str]:
    """What is wrong with the evaluation of a recipe beyond types; empty when nothing is.

    Raises:
        ConfigError: the suite does not exist, is wrong, or nobody says where its data are.
    """
    suite = None if cfg.eval.suite is None else suite_of(cfg.eval.suite, cfg.eval.data_root)[0]
    if cfg.eval.best is None:
        return []
    task, _, metric = cfg.eval.best.rpartition("/")
    out: list[str] = []
    if metric not in LABELS:
        out.append(f"eval.best: unknown metric '{metric}'{nearest(metric, list(LABELS))}")
    if not task and cfg.eval.source is None:
        out.append(f"eval.best: '{metric}' is of the rows of eval.source, which is not given; a suite's is <task>/{metric}")
    if task:
        known = [] if suite is None else [one.id for one in suite.tasks]
        if task not in known:
            where = f"suite '{suite.id}' has: {', '.join(known)}" if suite is not None else "eval.suite is not given"
            out.append(f"eval.best: no task '{task}'{nearest(task, known)} ({where})")
    return out


def eval_notes(cfg: Config) -> list[str]:
    """What a reader of a run's evaluations should know of how they are made."""
    worded = [] if cfg.eval.suite is None else other_wording(cfg.data.prompt, suite_of(cfg.eval.suite, cfg.eval.data_root)[0].tasks)
    others = {stage.rollout.engine for stage in cfg.stages if isinstance(stage, RolloutStage)} - {REFERENCE}
    if not others or (cfg.eval.source is None and cfg.eval.suite is None):
        return worded
    return [
        *worded,
        f"evaluations of this run are answered by the reference engine ({REFERENCE}), not by {', '.join(sorted(others))}, which answers in "
        "rollouts; `vlmrl eval --engine vllm` evaluates what the run exports",
    ]


def remember_stage(s: Session, name: str) -> None:
    """Keep the order in which stages were evaluated, for tables and the report."""
    path = s.run.eval / "order.json"
    names = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    if name not in names:
        fs.write_text(path, json.dumps([*names, name]))


def record_files(s: Session, name: str) -> list[Path]:
    """Files of the records of an evaluation: of the held-out rows, and of each task of the suite."""
    held_out = [s.run.eval / f"{name}.jsonl"] if s.cfg.eval.source is not None else []
    tasks = suite_of(s.cfg.eval.suite, s.cfg.eval.data_root)[0].tasks if s.cfg.eval.suite is not None else ()
    return [*held_out, *(s.run.eval / "suite" / name / f"{task.id}.jsonl" for task in tasks)]


def _parts(s: Session, name: str, policy: Policy, vision: VisionCache, stop: Stop) -> list[Callable[[], Mapping[str, float]]]:
    """What an evaluation consists of, each giving its metrics."""
    parts: list[Callable[[], Mapping[str, float]]] = []
    if s.cfg.eval.source is not None:
        parts.append(lambda: _held_out(s, name, policy, vision, stop))
    if s.cfg.eval.suite is not None:
        parts.append(lambda: _suite(s, name, policy, stop))
    return parts


def ask_again(s: Session, name: str, weights: str) -> None:
    """Make the lost records of an evaluation again, with the weights that it was of. What is there is not generated again."""
    policy = s.load_policy(weights, trains=s.cfg.trained)
    policy.model.requires_grad_(False)
    s.engine.wrap(policy)
    vision = VisionCache(s.store, budget_bytes=s.cfg.media.cache_bytes)
    for part in _parts(s, name, policy, vision, _budget(s.cfg.eval.max_seconds)):
        part()
    dist.on_main(lambda: s.identity.evaluated([path for path in record_files(s, name) if path.is_file()]))


def evaluate_stage(s: Session, name: str, policy: Policy, vision: VisionCache, clock: Clock | None = None) -> None:
    """Greedy answers to the held-out rows and the suite; records that are already there are not generated again.

    The seconds count in `clock`: within a stage that of its steps, else the run's.

    Raises:
        CheckpointError: a held-out row or its media are not those of the evaluations before.
    """
    if s.cfg.eval.source is None and s.cfg.eval.suite is None:
        return
    dist.doing(f"evaluation of '{name}'")
    values: dict[str, float] = {"eval/failed": 0.0}
    with (clock or s.clock).phase("evaluate"):
        stop = _budget(s.cfg.eval.max_seconds)
        # a file that is being written has no hash yet
        dist.on_main(lambda: [s.identity.forget(path) for path in record_files(s, name)])
        for part in _parts(s, name, policy, vision, stop):
            try:
                values |= part()
            except (Preempted, CheckpointError):
                raise
            except (VlmrlError, OSError, torch.OutOfMemoryError) as error:
                values["eval/failed"] += 1
                s.ui.say(f"warning: evaluation of '{name}' failed, training goes on: {error}")
        dist.on_main(lambda: s.identity.evaluated([path for path in record_files(s, name) if path.is_file()]))
        whole = not any(dist.gather(stop is not None and stop()))  # a part of the questions is no measure of the best
        if whole:
            _best(s, name, policy, values)
    s.tracker.log(values, stage=name, step=s.state.step, global_step=s.state.global_step)


def _budget(seconds: float | None) -> Stop:
    """Whether an evaluation that starts now has had its time."""
    if seconds is None:
        return None
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def _answers(
    s: Session,
    name: str,
    label: str,
    policy: Policy,
    vision: VisionCache,
    engine: LocalEngine,
    prompts: Sequence[Prompt],
    options: EvalOptions,
    out: Path,
    stop: Stop,
) -> list[Record]:
    vision.get_ready(policy)
    # generation asks no other rank for weights, so ranks may differ in the number of tokens
    with s.ui.bar(label, len(prompts)) as bar, policy.shards.whole():
        return evaluate(
            engine,
            prompts,
            options,
            out=out,
            model=name,
            tokenizer_len=lambda text: len(s.bundle.tokenize(text)),
            collective=dist,
            stop=stop,
            progress=lambda done, total: bar.update(done),
        )


def _held_out(s: Session, name: str, policy: Policy, vision: VisionCache, stop: Stop) -> dict[str, float]:
    """Metrics of the answers to `eval.source`, under `eval/`; of episodes where the last stage plays in an environment."""
    source, last = s.cfg.eval.source, s.cfg.stages[-1]
    assert source is not None
    samples = list(islice(s.rows_of(source, last.answer_format).samples.values(), s.cfg.eval.limit))
    settings = GenerationSettings(max_new_tokens=s.cfg.eval.max_new_tokens, temperature=0.0)
    options = EvalOptions(settings=settings, batch_prompts=s.cfg.eval.batch_prompts)
    label, file = f"evaluate {name}", s.run.eval / f"{name}.jsonl"
    if isinstance(last, RolloutStage) and last.environment is not None:
        records, more = EPISODES["held_out"](s, label, name, last, samples, policy, vision, options, file, stop)
        dist.on_main(lambda: remember_stage(s, name))
    else:
        prompts = dist.run_synchronized(lambda: [s.encoder.encode(sample, last.answer_format) for sample in samples])
        engine = LocalEngine(own_engine(policy, vision), fingerprint=weights_fingerprint(policy))
        records, more = _answers(s, name, label, policy, vision, engine, prompts, options, file, stop), {}
        dist.on_main(lambda: _keep(s, name, prompts))
    values = {"rows": float(len(records))} | more
    return {f"eval/{key}": value for key, value in values.items()} | _metrics(records, s.cfg.run.seed, "eval")


def held_out_score(s: Session, cfg: StageBase, until: UntilSection, policy: Policy) -> float:
    """Mean main score of greedy answers to the rows of a stage's `until`. Records: `eval/until/<stage>.jsonl`."""
    samples = list(islice(s.rows_of(until.source, cfg.answer_format).samples.values(), until.limit))
    prompts = dist.run_synchronized(lambda: [s.encoder.encode(sample, cfg.answer_format) for sample in samples])
    engine = LocalEngine(own_engine(policy, s.vision), fingerprint=weights_fingerprint(policy))
    options = EvalOptions(
        settings=GenerationSettings(max_new_tokens=until.max_new_tokens, temperature=0.0), batch_prompts=s.cfg.eval.batch_prompts
    )
    records = _answers(
        s, cfg.name, f"look at {cfg.name}", policy, s.vision, engine, prompts, options, s.run.eval / "until" / f"{cfg.name}.jsonl", None
    )
    return sum(main_score(record) for record in records) / len(records)


def _keep(s: Session, name: str, prompts: Sequence[Prompt]) -> None:
    """What the report needs besides the records."""
    remember_stage(s, name)
    PAGES["questions"](s.run.eval / "frames", s.bundle.piece, prompts, s.store)


def _suite(s: Session, name: str, policy: Policy, stop: Stop) -> dict[str, float]:
    """Metrics of a suite's tasks, under `eval/<task>/`. Records: `eval/suite/<stage>/<task>.jsonl`."""
    suite, root = suite_of(s.cfg.eval.suite, s.cfg.eval.data_root)
    fingerprint = weights_fingerprint(policy)
    folder = s.run.eval / "suite" / name
    out: dict[str, float] = {}
    for task in suite.tasks:
        store = open_store(task, s.bundle)
        media = s.used.of(store, f"suite {task.id}: ")
        options = eval_options(task, batch_prompts=suite.batch_prompts, seed=s.cfg.run.seed)
        label, file = f"evaluate {name}: {task.id}", folder / f"{task.id}.jsonl"
        if task.environment is not None:
            records, more = EPISODES["task_of_run"](s, label, name, task, root, policy, store, options, file, stop)
        else:
            prompts, _ = dist.run_synchronized(lambda task=task, media=media: task_prompts(task, root, media, s.bundle, None))
            vision = VisionCache(store, budget_bytes=task.media.cache_bytes)
            engine = LocalEngine(own_engine(policy, vision), fingerprint=fingerprint)
            records, more = _answers(s, name, label, policy, vision, engine, prompts, options, file, stop), {}
        store.close()
        out |= {f"eval/{task.id}/{key}": value for key, value in ({"rows": float(len(records))} | more).items()}
        out |= _metrics(records, s.cfg.run.seed, f"eval/{task.id}")
    return out


def suite_of(name: str | None, data_root: str | None) -> tuple[Suite, Path]:
    """The suite of a recipe and where its data lie.

    Raises:
        ConfigError: no such suite, or nobody says where its data are.
    """
    assert name is not None
    suite = load_suite(suite_path(name))
    return suite, data_root_of(suite, None if data_root is None else Path(data_root).expanduser())


def _metrics(records: Sequence[Record], seed: int, prefix: str) -> dict[str, float]:
    """Means of records. The bootstrap of `summarize` is the same on every rank."""
    if not records or not dist.is_main():
        return {}
    means = summarize(records, seed=seed).means()
    return {f"{prefix}/{metric}": value for metric, value in means.items() if value is not None}


def _best(s: Session, name: str, policy: Policy, values: Mapping[str, float]) -> None:
    """Where `eval.best` names a metric and this is its largest value so far: note it in `eval/best.json` and keep the weights in
    `best/<stage>`, in place of the ones before."""
    metric = s.cfg.eval.best
    value = dist.gather(values.get(f"eval/{metric}"))[0]  # rank 0 has the metrics
    if metric is None or value is None:
        return
    path = s.run.eval / "best.json"
    before = dist.gather(dist.on_main(lambda: json.loads(path.read_text(encoding="utf-8")) if path.exists() else None))[0]
    if before is not None and before["value"] >= value:
        return
    seal = export(policy, s.run.path / "best" / name, about=about(s, name), dtype=s.export_dtype)
    record = {"seal": seal, "metric": metric, "value": value, "stage": name, "step": s.state.step, "global_step": s.state.global_step}

    def note() -> None:
        fs.write_text(path, json.dumps(record, sort_keys=True) + "\n")
        if before is not None and before["stage"] != name:
            fs.remove_tree(s.run.path / "best" / before["stage"])

    dist.on_main(note)
