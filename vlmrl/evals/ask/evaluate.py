"""Evaluation of an engine on prompts: generate, then score, resumable, one record per answer.

Prompts are generated for in batches at fixed places. The last bits of batched kernels may depend on the company, so a batch that
is not complete in the records file is generated again as a whole: the numbers do not depend on where an earlier run stopped, nor on
how many ranks share the work. Answers that are there are scored again, so a mended scorer needs no new answers.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from vlmrl import faults
from vlmrl.answers.tags import parse
from vlmrl.evals.ask.engines import EvalEngine, Generation, recorded
from vlmrl.evals.score.records import Key, Record, RecordStore, Status, Think, prompt_ids_hash, prompt_keys, sample_hash, settings_json
from vlmrl.evals.score.scorers import SCORERS, thought_scores
from vlmrl.evals.score.view import View, answer_of
from vlmrl.types import GenerationSettings, Prompt, Sample

T = TypeVar("T")
JUDGED = "judged_"
"""Scores that a judge gave (`evals.score.thoughts`)."""
_OPENED = re.compile(r"<think(?:ing)?>", re.IGNORECASE)


class Ranks(Protocol):
    """Processes that share an evaluation; `train.dist` is one."""

    def rank(self) -> int: ...

    def world(self) -> int: ...

    def gather(self, value: T) -> list[T]:
        """`value` of every rank, in rank order, on every rank."""
        ...

    def together(self, fn: Callable[[], T]) -> T:
        """Run local work; if it fails on one rank, every rank raises."""
        ...


class Alone:
    """One process."""

    def rank(self) -> int:
        return 0

    def world(self) -> int:
        return 1

    def gather(self, value: T) -> list[T]:
        return [value]

    def together(self, fn: Callable[[], T]) -> T:
        return fn()


ALONE = Alone()


def evaluate(
    *,
    engine: EvalEngine,
    prompts: Sequence[Prompt],
    settings: GenerationSettings,
    out: Path,
    stage: str,
    batch_prompts: int,
    tokenizer_len: Callable[[str], int],
    samples: int = 1,
    seed: int = 0,
    view: View = "tagged",
    task_version: int = 1,
    ranks: Ranks = ALONE,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
    on_record: Callable[[Record], None] | None = None,
) -> list[Record]:
    """`samples` answers per prompt; the records on every rank, in the order of the prompts. `out` then holds exactly these.

    Args:
        out: the records file (JSON lines). What it already holds for these weights, prompts and settings is not generated again.
        stage: label of the model in the records.
        tokenizer_len: tokens of a text, for the length of thoughts.
        seed: of answers that are sampled.
        view: how answers are read from texts.
        ranks: processes that share the prompts, all with the same arguments; the first writes `out`.
        stop: asked before each batch on every rank; once one says yes, what is there is returned: fewer records than asked for.
        progress: called with (answered prompts, all prompts) at the start and after each batch.
        on_record: called with each record that was generated now.

    Raises:
        ValueError: several greedy answers, a batch size below 1, two prompts of one sample, or an answer type that has no scorer.
        StorageError: `out` is damaged or cannot be written.
    """
    _check(prompts, settings, batch_prompts, samples)
    reading = Reading(
        settings=settings,
        fingerprint=engine.fingerprint,
        stage=stage,
        tokenizer_len=tokenizer_len,
        seed=seed,
        view=view,
        task_version=task_version,
    )
    batches = [prompts[i : i + batch_prompts] for i in range(0, len(prompts), batch_prompts)]
    keys = [[prompt_keys(p, settings, engine.fingerprint, samples=samples, seed=seed) for p in batch] for batch in batches]
    store = ranks.together(lambda: RecordStore(out) if ranks.rank() == 0 else None)
    found = ranks.gather(store.found if store is not None else None)[0] or {}
    made = _again(batches, keys, found, reading)
    if store is not None:
        store.keep(_flat(keys), _in_order(made))
    waiting = [place for place in range(len(batches)) if place not in made]

    def tell() -> None:
        if progress is not None:
            progress(sum(len(batches[place]) for place in made), len(prompts))

    tell()
    for place, records in _generate(engine, batches, waiting, reading, samples=samples, ranks=ranks, stop=stop):
        made[place] = records
        if store is not None:
            store.append(records)
            faults.point("eval.record")
        if on_record is not None:
            for new in records:
                on_record(new)
        tell()
    if store is not None:
        store.finish(_in_order(made))
    return _in_order(made)


def _generate(
    engine: EvalEngine,
    batches: Sequence[Sequence[Prompt]],
    waiting: Sequence[int],
    reading: Reading,
    *,
    samples: int,
    ranks: Ranks,
    stop: Callable[[], bool] | None,
) -> Iterator[tuple[int, list[Record]]]:
    """Answer the waiting batches in rounds of one per rank; every rank gets (place, records) of all, in order."""

    def answer(places: Sequence[int]) -> list[Record]:
        if ranks.rank() >= len(places):
            return []
        batch = batches[places[ranks.rank()]]
        answers = engine.generate(batch, reading.settings, samples=samples, seed=reading.seed)
        return [reading.record(p, a, k) for p, own in zip(batch, answers, strict=True) for k, a in enumerate(own)]

    for start in range(0, len(waiting), ranks.world()):
        if stop is not None and any(ranks.gather(stop())):
            return
        places = waiting[start : start + ranks.world()]
        yield from zip(places, ranks.gather(ranks.together(lambda places=places: answer(places))), strict=False)


def _again(
    batches: Sequence[Sequence[Prompt]], keys: Sequence[Sequence[Sequence[Key]]], found: Mapping[Key, Record], reading: Reading
) -> dict[int, list[Record]]:
    """Batch -> its records, scored again, of the batches whose answers are all there."""
    return {
        place: [reading.again(prompt, found[key], k) for prompt, own in zip(batch, keys[place], strict=True) for k, key in enumerate(own)]
        for place, batch in enumerate(batches)
        if all(key in found for own in keys[place] for key in own)
    }


def _in_order(made: Mapping[int, list[Record]]) -> list[Record]:
    return [record for place in sorted(made) for record in made[place]]


def _flat(keys: Sequence[Sequence[Sequence[Key]]]) -> list[Key]:
    return [key for batch in keys for own in batch for key in own]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How the answers of one evaluation become records."""

    settings: GenerationSettings
    fingerprint: str
    """Of the weights."""
    stage: str
    """Label of the model."""
    tokenizer_len: Callable[[str], int]
    seed: int = 0
    view: View = "tagged"
    task_version: int = 1

    def again(self, prompt: Prompt, old: Record, k: int) -> Record:
        """An answer that is there, read and scored anew. What a judge said of it stays."""
        made = self.record(prompt, recorded(old), k)
        judged = {name: value for name, value in old.scores.items() if name.startswith(JUDGED)}
        return dataclasses.replace(made, scores={**made.scores, **judged}) if judged else made

    def record(self, prompt: Prompt, answer: Generation, k: int = 0) -> Record:
        """Read and score one answer. Pure.

        Raises:
            ValueError: the row lacks the gold answer that its answer type needs.
        """
        sample = prompt.sample
        parsed = parse(answer.text, prompt.answer_format)
        read = answer_of(answer.text, prompt.answer_format, self.view)
        pred, gold, scores = SCORERS[sample.answer_type](read, sample)
        unclosed = parsed.thought is None and "unclosed" in parsed.errors and _OPENED.search(answer.text) is not None
        has = parsed.thought is not None and bool(parsed.thought.strip())
        return Record(
            stage=self.stage,
            sample_id=sample.id,
            task=sample.task,
            cluster=sample.media[0].path if sample.media else sample.id,
            sample_hash=sample_hash(prompt),
            prompt_ids_hash=prompt_ids_hash(prompt),
            answer_format=prompt.answer_format,
            answer_type=sample.answer_type,
            text=answer.text,
            answer=read,
            status=status(read, pred, truncated=answer.finish == "length" or unclosed),
            format_ok=parsed.format_ok,
            pred=pred,
            gold=gold,
            scores=scores | thought_scores(parsed, sample),
            think=Think(has=has, tokens=self.tokenizer_len(parsed.thought) if parsed.thought else 0),
            n_in=len(prompt.ids),
            n_out=answer.n_out,
            finish=answer.finish,
            unclosed=unclosed,
            fingerprint=self.fingerprint,
            settings=settings_json(self.settings),
            difficulty=_label(sample, "difficulty"),
            category=_label(sample, "category"),
            group=_label(sample, "question_group"),
            frame=_label(sample, "frame"),
            k=k,
            seed=self.seed if self.settings.temperature > 0 else None,
            task_version=self.task_version,
        )


def _label(sample: Sample, key: str) -> str | None:
    value = sample.meta.get(key)
    return None if value is None else str(value)


def status(answer: str | None, pred: tuple[float, ...] | None, *, truncated: bool) -> Status:
    """How reading an answer went; see `records.Status`."""
    if pred is not None:
        return "ok"
    if answer is not None:
        return "unparsable"
    return "truncated" if truncated else "no_tag"


def _check(prompts: Sequence[Prompt], settings: GenerationSettings, batch_prompts: int, samples: int) -> None:
    if samples < 1 or (samples > 1 and settings.temperature == 0):
        raise ValueError(f"{samples} answers at temperature {settings.temperature}: several greedy answers are all the same")
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
