"""Evaluation engines generate the answers: with a model in this process, from a records file, or from a server.

All engines give the same thing, so that what is evaluated does not depend on where the weights are: `samples` answers per prompt, in
the order of the prompts, and a `fingerprint` that addresses the answers (`records.Record.key`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vlmrl import rng
from vlmrl.errors import ConfigError, StorageError
from vlmrl.evals.score.records import REFERENCE, Record, read_records, sample_hash, settings_json
from vlmrl.protocols import RolloutEngine
from vlmrl.registry import Catalogue
from vlmrl.types import FinishReason, GenerationSettings, Prompt, Request, Rollout

TOGETHER: Catalogue[Callable[..., list[list[Rollout]]]] = Catalogue("way to read prompts together")

WHOLE = {"min_pixels": 1, "max_pixels": 2**31}
"""Limits of a processor that cut nothing: a server that is sent them takes every processed frame, and a video counted whole, as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """One answer."""

    text: str
    """As generated, without special tokens. A server may leave out a character at the end that was begun only."""
    n_out: int
    """Tokens of the answer, end token included."""
    finish: FinishReason


class EvalEngine(Protocol):
    """Makes the answers of an evaluation."""

    @property
    def fingerprint(self) -> str:
        """Of what answers: equal fingerprints, prompts, settings and seeds mean the same answers."""
        ...

    @property
    def engine_name(self) -> str:
        """What generates, for the settings of records: `hf` (also for a server, whose engine nobody here knows), or `vllm`."""
        ...

    def generate(self, prompts: Sequence[Prompt], settings: GenerationSettings, *, samples: int, seed: int) -> list[list[Generation]]:
        """Generate `samples` answers to each prompt. Answer k of a prompt depends on `seed`, the sample's id and its k, never on what else
        is asked (up to the rounding of batched kernels).

        Returns:
            One list of answers per prompt, in the order of the prompts.
        """
        ...


def recorded(record: Record) -> Generation:
    """Take the answer of a record.

    Raises:
        ConfigError: an imported one, of which it is not known how it ended.
    """
    if record.n_out is None or record.finish is None:
        raise ConfigError(
            f"the answer to sample '{record.sample_id}' comes from {record.harness}, which does not say how long it was or how it ended"
        )
    return Generation(text=record.text, n_out=record.n_out, finish=record.finish)


def answer_seed(seed: int, sample_id: str, k: int) -> int:
    """Derive the seed of answer `k` to a sample, 63 bits. Apart from the seeds of training, whose second coordinate is `rollout`."""
    return rng.key(seed, "eval", sample_id, k)


def check_samples(samples: int) -> None:
    """Check that at least one answer per prompt is wanted. Raises ValueError."""
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")


class LocalEngine:
    """A rollout engine of this process, such as `rollout.engine_hf.HFEngine`."""

    def __init__(self, engine: RolloutEngine, *, fingerprint: str, engine_name: str = REFERENCE):
        """`fingerprint`: of the weights that `engine` generates with; it must change when they do."""
        self.engine = engine
        self.engine_name = engine_name
        self._fingerprint = fingerprint

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def generate(self, prompts: Sequence[Prompt], settings: GenerationSettings, *, samples: int, seed: int) -> list[list[Generation]]:
        """See `EvalEngine`. All prompts go to the engine in one call; cut them into batches where memory is short."""
        check_samples(samples)
        ks = tuple(range(samples))
        requests = [Request(prompt=p, ks=ks, seeds=tuple(answer_seed(seed, p.sample.id, k) for k in ks)) for p in prompts]
        made = TOGETHER["openings"](self.engine, requests, settings)
        return [[Generation(text=r.text, n_out=len(r.ids), finish=r.finish) for r in own] for own in made]


class ReplayEngine:
    """Answers that were generated before, for scoring them again. Its fingerprint is that of the records."""

    def __init__(self, records: Iterable[Record], *, where: str):
        """`where`: what to name in messages.

        Raises:
            ConfigError: there are no records, they are of several models, or two are the same answer to the same sample.
        """
        self._answers: dict[tuple[str, int], Record] = {}
        self._where = where
        for record in records:
            if (record.sample_id, record.k) in self._answers:
                raise ConfigError(
                    f"{where}: two records of answer {record.k} to sample '{record.sample_id}'; name the files of one evaluation"
                )
            self._answers[record.sample_id, record.k] = record
        # one fingerprint addresses all answers of an engine, so records of two models cannot share one
        prints = sorted({record.fingerprint for record in self._answers.values()})
        if len(prints) != 1:
            found = f"records of {len(prints)} models ({', '.join(prints)})" if prints else "no records"
            raise ConfigError(f"{where}: {found}; replay needs the records of one model")
        self._fingerprint = prints[0]
        names = sorted({str(record.settings.get("engine", REFERENCE)) for record in self._answers.values()})
        if len(names) != 1:
            raise ConfigError(f"{where}: answers of several engines ({', '.join(names)}); replay needs those of one")
        self.engine_name = names[0]

    @staticmethod
    def of_files(paths: Iterable[Path]) -> ReplayEngine:
        """Read records files (`records.read_records`), which together are one evaluation.

        Raises:
            StorageError: a file is missing or damaged.
            ConfigError: see the constructor.
        """
        paths = list(paths)
        records = [record for path in paths for record in read_records(path)]
        return ReplayEngine(records, where=", ".join(str(path) for path in paths) or "replay")

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def generate(self, prompts: Sequence[Prompt], settings: GenerationSettings, *, samples: int, seed: int) -> list[list[Generation]]:
        """See `EvalEngine`.

        Raises:
            StorageError: an answer is not there.
            ConfigError: it was given to another question or other pixels, or was generated with other settings or another seed.
        """
        check_samples(samples)
        return [[self._answer(prompt, settings, k, seed) for k in range(samples)] for prompt in prompts]

    def _answer(self, prompt: Prompt, settings: GenerationSettings, k: int, seed: int) -> Generation:
        name = prompt.sample.id
        record = self._answers.get((name, k))
        if record is None:
            raise StorageError(f"{self._where}: no answer {k} to sample '{name}'; evaluate it, or ask for fewer samples")
        which = f"{self._where}: the answer {k} to sample '{name}' was"
        if record.sample_hash != sample_hash(prompt):
            raise ConfigError(
                f"{which} given to another question, gold answer or other pixels than the row now has; use the data and media settings "
                "of the evaluation that wrote the records"
            )
        # greedy answers depend on no seed, and their records have none
        asked = settings_json(settings, self.engine_name), seed if settings.temperature > 0 else None
        made = dict(record.settings), record.seed
        if made != asked:
            raise ConfigError(f"{which} generated with {made[0]} and seed {made[1]}, asked for is {asked[0]} and seed {asked[1]}")
        return recorded(record)
