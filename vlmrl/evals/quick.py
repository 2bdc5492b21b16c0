"""Greedy evaluation of a policy on held-out prompts, resumable, one record per sample.

Prompts are generated for in batches at fixed places. The last bits of batched kernels may depend on the company, so a batch that
is not complete in the records file is generated again as a whole: the numbers do not depend on where an earlier run stopped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from vlmrl import faults
from vlmrl.evals.records import Record, RecordStore, Status, Think, prompt_ids_hash, prompt_key, sample_hash, settings_json
from vlmrl.evals.scorers import SCORERS, thought_scores
from vlmrl.protocols import RolloutEngine
from vlmrl.rewards.answer import parse
from vlmrl.types import GenerationSettings, Prompt, Request, Rollout

_OPENED = re.compile(r"<think(?:ing)?>", re.IGNORECASE)


def evaluate(
    *,
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    settings: GenerationSettings,
    fingerprint: str,
    out: Path,
    stage: str,
    batch_prompts: int,
    tokenizer_len: Callable[[str], int],
    progress: Callable[[int, int], None] | None = None,
    on_record: Callable[[Record], None] | None = None,
) -> list[Record]:
    """One greedy answer per prompt; the records, in the order of the prompts. `out` then holds exactly these.

    Args:
        fingerprint: of the weights that `engine` generates with.
        out: the records file (JSON lines). What it already holds for these weights, prompts and settings is not generated again.
        stage: label of the model in the records.
        tokenizer_len: tokens of a text, for the length of thoughts.
        progress: called with (done, total) at the start and after each batch.
        on_record: called with each record that was generated now.

    Raises:
        ValueError: settings that sample, a batch size below 1, two prompts of one sample, or an answer type that has no scorer.
        StorageError: `out` is damaged or cannot be written.
    """
    _check(prompts, settings, batch_prompts)
    batches = [prompts[i : i + batch_prompts] for i in range(0, len(prompts), batch_prompts)]
    keys = [[prompt_key(prompt, settings, fingerprint) for prompt in batch] for batch in batches]
    store = RecordStore(out)
    complete = [key for batch in keys if all(key in store.found for key in batch) for key in batch]
    kept = store.keep([key for batch in keys for key in batch], complete)
    records: list[Record] = []
    if progress:
        progress(len(kept), len(prompts))
    done = len(kept)
    for batch, batch_keys in zip(batches, keys, strict=True):
        if batch_keys[0] in kept:
            records += [kept[key] for key in batch_keys]
            continue
        answers = engine.generate([Request(prompt=prompt, seeds=(0,), ks=(0,)) for prompt in batch], settings)
        made = [
            make_record(prompt, answer[0], settings=settings, fingerprint=fingerprint, stage=stage, tokenizer_len=tokenizer_len)
            for prompt, answer in zip(batch, answers, strict=True)
        ]
        store.append(made)
        faults.point("eval.record")
        records += made
        done += len(made)
        for record in made:
            if on_record:
                on_record(record)
        if progress:
            progress(done, len(prompts))
    store.finish()
    return records


def make_record(
    prompt: Prompt, rollout: Rollout, *, settings: GenerationSettings, fingerprint: str, stage: str, tokenizer_len: Callable[[str], int]
) -> Record:
    """Read and score one answer. Pure."""
    parsed = parse(rollout.text, prompt.template)
    pred, gold, scores = SCORERS[prompt.sample.answer_type](parsed.answer, prompt.sample)
    difficulty = prompt.sample.meta.get("difficulty")
    unclosed = parsed.thought is None and "unclosed" in parsed.errors and _OPENED.search(rollout.text) is not None
    has = parsed.thought is not None and bool(parsed.thought.strip())
    return Record(
        stage=stage,
        sample_id=prompt.sample.id,
        task=prompt.sample.task,
        cluster=prompt.sample.media[0].path if prompt.sample.media else prompt.sample.id,
        sample_hash=sample_hash(prompt),
        prompt_ids_hash=prompt_ids_hash(prompt),
        template=prompt.template,
        answer_type=prompt.sample.answer_type,
        text=rollout.text,
        answer=parsed.answer,
        status=status(parsed.answer, pred, truncated=rollout.finish == "length" or unclosed),
        format_ok=parsed.format_ok,
        pred=pred,
        gold=gold,
        scores=scores | thought_scores(parsed, prompt.sample),
        think=Think(has=has, tokens=tokenizer_len(parsed.thought) if parsed.thought else 0),
        n_in=len(prompt.ids),
        n_out=len(rollout.ids),
        finish=rollout.finish,
        unclosed=unclosed,
        fingerprint=fingerprint,
        settings=settings_json(settings),
        difficulty=None if difficulty is None else str(difficulty),
    )


def status(answer: str | None, pred: tuple[float, ...] | None, *, truncated: bool) -> Status:
    """How reading an answer went; see `records.Status`."""
    if pred is not None:
        return "ok"
    if answer is not None:
        return "unparsable"
    return "truncated" if truncated else "no_tag"


def _check(prompts: Sequence[Prompt], settings: GenerationSettings, batch_prompts: int) -> None:
    if settings.temperature != 0:
        raise ValueError(f"evaluation is greedy: temperature must be 0, got {settings.temperature}")
    if batch_prompts < 1:
        raise ValueError(f"batch_prompts must be at least 1, got {batch_prompts}")
    for name, count in Counter(prompt.sample.id for prompt in prompts).items():
        if count > 1:
            raise ValueError(f"sample '{name}' is asked {count} times; give every row its own id")
    for prompt in prompts:
        if prompt.sample.answer_type not in SCORERS:
            raise ValueError(
                f"row '{prompt.sample.id}' ({prompt.sample.source}): no evaluation for answer type '{prompt.sample.answer_type}' "
                f"(there is: {', '.join(SCORERS)})"
            )
