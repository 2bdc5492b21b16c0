"""The evaluator: asks an engine each prompt, scores the answers, keeps one record per answer; resumable.

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
from typing import Any, Protocol, TypeVar

from vlmrl import faults
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.tags import parse
from vlmrl.evals.ask.engines import EvalEngine, Generation, recorded
from vlmrl.evals.score.extraction import Extraction, answer_of
from vlmrl.evals.score.measures import JUDGED
from vlmrl.evals.score.records import (
    REFERENCE,
    Key,
    Record,
    RecordStore,
    Status,
    Think,
    prompt_ids_hash,
    prompt_keys,
    sample_hash,
    settings_json,
)
from vlmrl.evals.score.scorers import score
from vlmrl.types import GenerationSettings, Prompt, Sample

T = TypeVar("T")
_OPENED = re.compile(r"<think(?:ing)?>", re.IGNORECASE)


class Collective(Protocol):
    """Processes that share an evaluation; `train.dist` is one."""

    def rank(self) -> int: ...

    def world(self) -> int: ...

    def gather(self, value: T) -> list[T]:
        """Collect `value` of every rank, in rank order, on every rank."""
        ...

    def run_synchronized(self, fn: Callable[[], T]) -> T:
        """Run local work; if it fails on one rank, every rank raises."""
        ...


class SingleProcess:
    """The collective of one process."""

    def rank(self) -> int:
        return 0

    def world(self) -> int:
        return 1

    def gather(self, value: T) -> list[T]:
        return [value]

    def run_synchronized(self, fn: Callable[[], T]) -> T:
        return fn()


SINGLE_PROCESS = SingleProcess()


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalOptions:
    """How prompts are asked and answers are read: all that decides the numbers besides weights and prompts."""

    settings: GenerationSettings
    batch_prompts: int = 32
    """Prompts generated for at a time."""
    samples: int = 1
    """Answers per prompt."""
    seed: int = 0
    """Of answers that are sampled."""
    extraction: Extraction = "strict"
    scoring: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """Options of the answer type's own scoring (`Task.scoring`)."""
    task_version: int = 1


def evaluate(
    engine: EvalEngine,
    prompts: Sequence[Prompt],
    options: EvalOptions,
    *,
    out: Path,
    model: str,
    tokenizer_len: Callable[[str], int],
    collective: Collective = SINGLE_PROCESS,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Record]:
    """Ask all prompts and score the answers. `out` then holds exactly the records that are returned.

    Args:
        out: the records file (JSON lines). What it already holds for these weights, prompts and settings is not generated again.
        model: its name in the records.
        tokenizer_len: tokens of a text, for the length of thoughts.
        collective: processes that share the prompts, all with the same arguments; the first writes `out`.
        stop: asked before each batch on every rank; once one says yes, what is there is returned: fewer records than asked for.
        progress: called with (answered prompts, all prompts) at the start and after each batch.

    Returns:
        The records on every rank, in the order of the prompts; fewer than asked for where `stop` said yes.

    Raises:
        ValueError: several greedy answers, a batch size below 1, two prompts of one sample, or an answer type that is not known.
        StorageError: `out` is damaged or cannot be written.
    """
    _check(prompts, options)
    reading = RecordBuilder(
        options=options, fingerprint=engine.fingerprint, model=model, tokenizer_len=tokenizer_len, engine=engine.engine_name
    )
    # at fixed places: a batch that is only partly there is generated again as a whole, in the same company
    batches = [prompts[i : i + options.batch_prompts] for i in range(0, len(prompts), options.batch_prompts)]
    keys = [[reading.keys(prompt) for prompt in batch] for batch in batches]
    store = collective.run_synchronized(lambda: RecordStore(out) if collective.rank() == 0 else None)
    # every rank learns what the first one read, and decides alike what is left to do
    found = collective.gather(store.found if store is not None else None)[0] or {}
    done = _rescored(batches, keys, found, reading)
    if store is not None:
        store.keep([key for batch in keys for own in batch for key in own], _in_order(done))
    waiting = [place for place in range(len(batches)) if place not in done]

    def tell() -> None:
        if progress is not None:
            progress(sum(len(batches[place]) for place in done), len(prompts))

    tell()
    for place, records in _generate(engine, batches, waiting, reading, collective, stop):
        done[place] = records
        if store is not None:
            store.append(records)
            faults.point("eval.record")
        tell()
    if store is not None:
        store.finish(_in_order(done))
    return _in_order(done)


def _generate(
    engine: EvalEngine,
    batches: Sequence[Sequence[Prompt]],
    waiting: Sequence[int],
    reading: RecordBuilder,
    collective: Collective,
    stop: Callable[[], bool] | None,
) -> Iterator[tuple[int, list[Record]]]:
    """Answer the waiting batches in rounds of one per rank; every rank gets (place, records) of all, in order."""
    options = reading.options

    def answer(place: int) -> list[Record]:
        answers = engine.generate(batches[place], options.settings, samples=options.samples, seed=options.seed)
        return [reading.record(p, a, k) for p, own in zip(batches[place], answers, strict=True) for k, a in enumerate(own)]

    return rounds(answer, waiting, collective, stop)


def rounds(
    answer: Callable[[int], list[T]], waiting: Sequence[int], collective: Collective, stop: Callable[[], bool] | None
) -> Iterator[tuple[int, list[T]]]:
    """Answer the waiting places, a round of one per rank at a time; every rank gets (place, answers) of all, in order."""

    def mine(places: Sequence[int]) -> list[T]:
        return answer(places[collective.rank()]) if collective.rank() < len(places) else []

    for start in range(0, len(waiting), collective.world()):
        # all ranks stop before the same round, or the others would wait for one that has left
        if stop is not None and any(collective.gather(stop())):
            return
        places = waiting[start : start + collective.world()]
        # in the last round there may be fewer places than ranks; `strict=False` leaves out the empty lists of the others
        yield from zip(places, collective.gather(collective.run_synchronized(lambda places=places: mine(places))), strict=False)


def _rescored(
    batches: Sequence[Sequence[Prompt]], keys: Sequence[Sequence[Sequence[Key]]], found: Mapping[Key, Record], reading: RecordBuilder
) -> dict[int, list[Record]]:
    """Batch -> its records, scored again, of the batches whose answers are all there."""
    return {
        place: [reading.rescore(prompt, found[key], k) for prompt, own in zip(batch, keys[place], strict=True) for k, key in enumerate(own)]
        for place, batch in enumerate(batches)
        if all(key in found for own in keys[place] for key in own)
    }


def _in_order(made: Mapping[int, list[Record]]) -> list[Record]:
    return [record for place in sorted(made) for record in made[place]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordBuilder:
    """How the answers of one evaluation become records."""

    options: EvalOptions
    fingerprint: str
    """Of the weights."""
    model: str
    tokenizer_len: Callable[[str], int]
    engine: str = REFERENCE
    """`EvalEngine.engine_name`."""

    def keys(self, prompt: Prompt) -> list[Key]:
        """List `Record.key` of the records that a prompt will get, one per answer."""
        options = self.options
        return prompt_keys(prompt, options.settings, self.fingerprint, samples=options.samples, seed=options.seed, engine=self.engine)

    def rescore(self, prompt: Prompt, old: Record, k: int) -> Record:
        """Read and score anew an answer that is there. What a judge said of it stays."""
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
        read = answer_of(answer.text, prompt.answer_format, self.options.extraction)
        pred, gold, scores = score(read, parsed, sample, self.options.scoring)
        # the tag must be there: "unclosed" is also said of a closing tag that nothing opened
        unclosed = parsed.thought is None and "unclosed" in parsed.errors and _OPENED.search(answer.text) is not None
        has = parsed.thought is not None and bool(parsed.thought.strip())
        return Record(
            model=self.model,
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
            scores=scores,
            think=Think(has=has, tokens=self.tokenizer_len(parsed.thought) if parsed.thought else 0),
            n_in=len(prompt.ids),
            n_out=answer.n_out,
            finish=answer.finish,
            unclosed=unclosed,
            fingerprint=self.fingerprint,
            settings=settings_json(self.options.settings, self.engine),
            k=k,
            seed=self.options.seed if self.options.settings.temperature > 0 else None,
            task_version=self.options.task_version,
            **labels(sample),
        )


def labels(sample: Sample) -> dict[str, Any]:
    """Collect what a row says of itself that parts of a summary and groups of questions go by."""
    names = {"difficulty": "difficulty", "category": "category", "group": "question_group", "frame": "frame"}
    return {name: None if sample.meta.get(key) is None else str(sample.meta[key]) for name, key in names.items()}


def status(answer: str | None, pred: tuple[float, ...] | None, *, truncated: bool) -> Status:
    """Name how reading an answer went; see `records.Status`."""
    if pred is not None:
        return "ok"
    if answer is not None:
        return "unparsable"
    return "truncated" if truncated else "no_tag"


def _check(prompts: Sequence[Prompt], options: EvalOptions) -> None:
    samples, temperature = options.samples, options.settings.temperature
    if samples < 1 or (samples > 1 and temperature == 0):
        raise ValueError(f"{samples} answers at temperature {temperature}: several greedy answers are all the same")
    if options.batch_prompts < 1:
        raise ValueError(f"batch_prompts must be at least 1, got {options.batch_prompts}")
    for name, count in Counter(prompt.sample.id for prompt in prompts).items():
        if count > 1:
            raise ValueError(f"sample '{name}' is asked {count} times; give every row its own id")
    for prompt in prompts:
        problem = ANSWER_TYPES.problem(prompt.sample.answer_type)
        if problem is not None:
            raise ValueError(f"row '{prompt.sample.id}' ({prompt.sample.source}): {problem}")
