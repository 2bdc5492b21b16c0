"""Evaluation between stages: greedy answers on held-out rows, kept as records, with frames for the report."""

from __future__ import annotations

import json
from collections.abc import Sequence

from vlmrl import fs
from vlmrl.evals.quick import evaluate
from vlmrl.evals.records import read_records
from vlmrl.evals.runfiles import save_frames
from vlmrl.evals.summary import summarize
from vlmrl.policy.load import Policy, weights_fingerprint
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.train import dist
from vlmrl.train.clock import Clock
from vlmrl.train.session import Session
from vlmrl.types import GenerationSettings, Sample

FRAMES_IN_REPORT = 24
"""Held-out questions whose frames are kept for the report."""


def remember_stage(s: Session, name: str) -> None:
    """Keep the order in which stages were evaluated, for tables and the report."""
    path = s.run.eval / "order.json"
    names = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    if name not in names:
        fs.write_text(path, json.dumps([*names, name]))


def evaluate_stage(s: Session, name: str, policy: Policy, vision: VisionCache, clock: Clock | None = None) -> None:
    """Greedy answers on the held-out rows; records that are already there are not generated again.

    The seconds count in `clock`: within a stage that of its steps, else the run's."""
    source = s.cfg.eval.source
    if source is None:
        return
    template = s.cfg.stages[-1].template
    samples = list(s.rows_of(source, template).samples.values())[: s.cfg.eval.limit]
    with (clock or s.clock).phase("evaluate"):
        dist.on_main(lambda: _evaluate_main(s, name, samples, template, policy, vision))
    values = {"eval/rows": float(len(samples))} | _eval_metrics(s, name)
    s.tracker.log(values, stage=name, step=s.state.step, global_step=s.state.global_step)


def _evaluate_main(s: Session, name: str, samples: Sequence[Sample], template: str, policy: Policy, vision: VisionCache) -> None:
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
    remember_stage(s, name)
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
    if not dist.is_main():
        return {}
    summary = summarize(read_records(s.run.eval / f"{name}.jsonl"), seed=s.cfg.run.seed)
    return {f"eval/{metric}": value for metric, value in summary.means().items() if value is not None}
