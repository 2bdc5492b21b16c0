"""What a trainer is asked and what it gives back. A trainer is an adapter of three short functions (`Trainer`).

A job is a few rows for a tiny model. What came of it is judged by others (`judge`), so an adapter only reports: the log-probs that entered
the loss, the ids that they are of, and, where it can be seen, the patches that the vision tower was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from vlmrl.types import MediaKind

RATE = 1e-2
"""Learning rate of every job: after one update features of a tower that trains are told from those before it."""
GOLD = "<answer>3</answer>"
Fault = str
"""Key of a fault, as `faults.FAULTS` has it."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A question about media."""

    word: str
    """Stands in the text of this row alone: answers are told apart by it."""
    text: str
    media: tuple[str, ...]
    """Files, in the order in which they are shown."""
    kind: MediaKind = "image"


@dataclass(frozen=True, kw_only=True)
class Job:
    """Rows to train on, once each in every step, with `group` answers each. Everything trains, the tower included."""

    model: str
    """Folder of a Qwen2.5-VL with its processor."""
    folder: str
    """An empty one, to write in."""
    rows: tuple[Row, ...]
    steps: int = 1
    ranks: int = 1
    """Processes; each has as many of the rows as the others."""
    lost: tuple[int, ...] = ()
    """Ranks whose batch loses its pixels behind the rollout, in front of the training forward pass: the adapter takes them out there."""
    fps: float = 2.0
    """Frames of a video per second that the model is shown."""
    most_prompt_tokens: int | None = None
    """Longest prompt, where the trainer has such a bound."""
    group: int = 2
    answer_tokens: int = 6


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer as the loss saw it."""

    prompt: tuple[int, ...]
    """Ids of the training forward pass in front of the answer, without padding."""
    ids: tuple[int, ...]
    logp: tuple[float, ...]
    """Log-probs in nats of `ids` that entered the loss, at temperature 1."""
    excluded: tuple[int, ...] = ()
    """Ids that the trainer takes out of the distribution."""
    step: int = 0
    sampled: tuple[float, ...] = ()
    """Log-probs that the rollout reported; empty: it reports none."""
    weights: Mapping[str, Any] | None = None
    """Weights of the forward pass by their names in transformers' model; None: those of the job's model."""


@dataclass(frozen=True)
class Shown:
    """Patches of one medium that went into the vision tower."""

    train: bool
    """Whether a backward pass follows."""
    grid: tuple[int, int, int]
    patches: Any
    """float32 tensor [t * h * w, dim]."""


@dataclass
class Trained:
    """What came of a job."""

    answers: list[Answer] = field(default_factory=list[Answer])
    said: list[str] = field(default_factory=list[str])
    """Warnings that the trainer gives elsewhere than in `warnings` and `logging`."""
    shown: list[Shown] = field(default_factory=list[Shown])
    """Filled in by who asks; stays empty where the tower runs in another process."""
    error: str | None = None
    """Error of a rank in another process."""


class Trainer(Protocol):
    """Adapter of a trainer."""

    name: str

    def version(self) -> str:
        """Name the version that is asked."""
        ...

    def lacks(self, fault: Fault) -> str | None:
        """Say why a fault does not apply, for want of the path that it is on; None where it does."""
        ...

    def train(self, job: Job) -> Trained:
        """Train the job's steps. What the trainer raises rises."""
        ...


def as_json(trained: Trained) -> dict[str, Any]:
    """Turn the result of a rank into plain values; pixels and weights stay behind."""
    answers = [asdict(answer) for answer in trained.answers if answer.weights is None]
    return {"answers": answers, "said": trained.said, "error": trained.error}


def from_json(found: Mapping[str, Any]) -> Trained:
    """Read what `as_json` wrote."""
    answers: list[Answer] = []
    for one in found["answers"]:
        fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in one.items()}
        answers.append(Answer(**fields))
    return Trained(answers=answers, said=list(found["said"]), error=found["error"])


def job_of(found: Mapping[str, Any]) -> Job:
    """Read a job from plain values (`dataclasses.asdict`)."""
    rows = tuple(Row(**{**row, "media": tuple(row["media"])}) for row in found["rows"])
    return Job(**{**found, "rows": rows, "lost": tuple(found["lost"])})


def spread(completions: list[Any], **columns: Any) -> list[float]:
    """Reward answers by nothing but their letters, so that answers of a group differ: TRL's form, which both trainers take.

    The gold answer earns the most, without which vlmrl would refuse the reward.
    """
    del columns
    texts = [one if isinstance(one, str) else one[0]["content"] for one in completions]
    return [1.0 if GOLD in text else sum((n + 1) * ord(letter) for n, letter in enumerate(text)) % 97 / 200 for text in texts]
