"""Asks a trainer for each fault, and decides by measurement what became of it.

A verdict is one of: `noticed`, an error or a warning whose text names the fault; `stopped`, an error that does not; `prevented`, the
log-probs that entered the loss are those of the reference under the right pixels, and the tower was given these pixels in rollout and
training, where that can be seen; `in silence`, they are not, or a row was left out, and nothing was said; `does not apply`, with the
adapter's reason.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from vlmrl.errors import VlmrlError
from vlmrl.extras.pixels.faults import FAULTS, Case, Fault, Reading, plain, plain_video
from vlmrl.extras.pixels.feed import PLACEHOLDERS, Feed
from vlmrl.extras.pixels.job import Answer, Shown, Trained, Trainer
from vlmrl.extras.pixels.reference import Medium, Reference
from vlmrl.types import MediaKind

Verdict = Literal["noticed", "stopped", "prevented", "in silence", "does not apply"]
CLOSE = 1e-3
"""Nats that two forward passes in float32 may differ by; also the difference of normalised pixels."""
APART = 20 * CLOSE
"""Nats that black pixels must differ by from those of the file, so that the measure can tell."""

SHOWN = 160
"""Letters of a message that are shown."""
_PATH = re.compile(r"(?<!\w)/[^\s:'\"]+(:\d+)?:?")
"""An absolute path, with a line number: a folder that is called after a fault names none."""


@dataclass(frozen=True)
class Found:
    """What became of a fault."""

    fault: str
    verdict: Verdict
    how: str
    """The measured numbers, or the message."""


class CannotTell(VlmrlError):
    """The measure does not work for this trainer: without any fault it is not right, or black pixels look like those of the file."""


@dataclass
class Heard:
    """What a trainer did and said."""

    trained: Trained | None
    error: str | None
    said: list[str]


@dataclass
class Judge:
    """Asks trainers, with models and media in one folder."""

    feed: Feed
    _references: dict[str, Reference] = field(default_factory=dict[str, Reference])

    def reference(self, folder: str) -> Reference:
        """Open the reference for a model, once."""
        if folder not in self._references:
            self._references[folder] = Reference(folder)
        return self._references[folder]

    def verdicts(self, trainer: Trainer, keys: Sequence[str] | None = None) -> Iterator[Found]:
        """Ask a trainer.

        Args:
            keys: of the faults; None: all.

        Raises:
            CannotTell: it trains otherwise than the reference where nothing is wrong.
        """
        usual: dict[MediaKind, set[str]] = {}
        for fault in FAULTS:
            if keys is not None and fault.key not in keys:
                continue
            if (lacks := trainer.lacks(fault.key)) is not None:
                yield Found(fault.key, "does not apply", lacks)
                continue
            if fault.kind not in usual:
                usual[fault.kind] = self.usual(trainer, fault.kind)
            yield self.ask(trainer, fault, usual[fault.kind])

    def usual(self, trainer: Trainer, kind: MediaKind) -> set[str]:
        """Train a job with nothing wrong, see that the measure works, and return what the trainer says then.

        Raises:
            CannotTell: see there.
        """
        reference = self.reference(self.feed.model())
        case = plain(self.feed, reference) if kind == "image" else plain_video(self.feed, reference)
        heard = hear(trainer, case)
        if heard.trained is None or heard.error is not None:
            raise CannotTell(f"{trainer.name} does not train a job of one {kind}: {heard.error}")
        right, how = self.compare(case, heard.trained)
        if not right:
            raise CannotTell(f"{trainer.name} trains otherwise than the reference where nothing is wrong with one {kind}: {how}")
        (media,) = case.readings[0].values()
        black = [Medium(one.kind, one.grid, torch.zeros_like(one.patches), one.seconds) for one in media]
        apart = max(_gap(answer.logp, reference.logp(answer, black)) for answer in heard.trained.answers)
        if apart < APART:
            raise CannotTell(f"without the pixels of one {kind} log-probs differ by {apart:.1e} only; the model does not look at them")
        return set(heard.said)

    def ask(self, trainer: Trainer, fault: Fault, usual: set[str]) -> Found:
        """Ask for one fault. `usual`: what the trainer says where nothing is wrong."""
        case = fault.make(self.feed, self.reference(self.feed.model()))
        heard = hear(trainer, case)
        texts = ([] if heard.error is None else [heard.error]) + [text for text in heard.said if text not in usual]
        for text in texts:
            plain_text = " ".join(_PATH.sub("", text).split())
            if (named := re.search(fault.names, plain_text, re.IGNORECASE)) is not None:
                return Found(fault.key, "noticed", _short(plain_text, named.start()))
        if heard.error is not None or heard.trained is None:
            return Found(fault.key, "stopped", _short(" ".join(_PATH.sub("", heard.error or "no result").split())))
        right, how = self.compare(case, heard.trained)
        if fault.key == "sampled":
            how += f"; {self.count_placeholders(case, heard.trained)}"
        return Found(fault.key, "prevented" if right else "in silence", how)

    def count_placeholders(self, case: Case, trained: Trained) -> str:
        """Count placeholders among the tokens that the loss saw."""
        tokenizer = self.reference(case.job.model).processor.tokenizer
        ids = [token for answer in trained.answers for token in answer.ids]
        image, video = (ids.count(tokenizer.convert_tokens_to_ids(name)) for name in PLACEHOLDERS)
        return f"of {len(ids)} answer tokens {image} are image and {video} video placeholders"

    def compare(self, case: Case, trained: Trained) -> tuple[bool, str]:
        """Hold what was trained against the right readings.

        Returns:
            (whether it is right, the numbers).
        """
        reference = self.reference(case.job.model)
        by_word: dict[str, list[Answer]] = {row.word: [] for row in case.job.rows}
        for answer in trained.answers:
            for word, own in by_word.items():
                if word in reference.text(answer.prompt):
                    own.append(answer)
        missing = [word for word, own in by_word.items() if len(own) < case.job.group * case.job.steps]
        if missing:
            return False, f"answers of {len(missing)} of {len(by_word)} rows never came to the loss"
        readings = _rolled_out(case, trained) if case.as_rolled_out and any(not one.train for one in trained.shown) else case.readings
        tries = [self._against(reading, by_word, trained, reference) for reading in readings]
        return max(tries, key=lambda one: one[0])

    def _against(self, reading: Reading, by_word: dict[str, list[Answer]], trained: Trained, reference: Reference) -> tuple[bool, str]:
        worst = 0.0
        for word, answers in by_word.items():
            for answer in answers:
                expected = reference.logp(answer, reading[word])
                if expected is None:
                    placeholders = sum(token in reference.pads.values() for token in answer.prompt)
                    tokens = sum(len(one.patches) for one in reading[word]) // 4
                    return False, f"{placeholders} placeholders in the prompt, {tokens} visual tokens in the file"
                worst = max(worst, _gap(answer.logp, expected))
                if answer.sampled:
                    worst = max(worst, _gap(answer.sampled, expected))
        said = f"log-probs at most {worst:.1e} from the reference"
        if worst > CLOSE:
            return False, f"log-probs up to {worst:.2g} from the reference"
        for train in (False, True):
            shown = [one for one in trained.shown if one.train == train]
            if shown and not all(_is_shown(medium, shown) for media in reading.values() for medium in media):
                return False, f"{said}, but the tower was given other pixels in {'training' if train else 'the rollout'}"
        both = {one.train for one in trained.shown} == {False, True}
        return True, f"{said}; pixels of rollout and training are the right ones" if both else said


def hear(trainer: Trainer, case: Case) -> Heard:
    """Train a case with everything recorded that the trainer says and shows to the tower."""
    said: list[str] = []
    trained, error = None, None
    with _logged(said), warnings.catch_warnings(record=True) as warned, towers() as shown:
        warnings.simplefilter("always")
        try:
            trained = trainer.train(case.job)
        except Exception as raised:  # noqa: BLE001 (whatever a trainer raises is its answer, and is told)
            error = f"{type(raised).__name__}: {raised}"
    said += [str(one.message) for one in warned]
    if trained is not None:
        trained.shown += shown
        said += trained.said
        error = error or trained.error
    return Heard(trained, error, said)


@contextmanager
def towers() -> Iterator[list[Shown]]:
    """Record what goes into vision towers of transformers' Qwen2.5-VL in this process."""
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel as Tower

    shown: list[Shown] = []
    forward = Tower.forward

    def recorded(self: Any, hidden_states: torch.Tensor, grid_thw: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        at = 0
        for t, h, w in grid_thw.tolist():
            patches = hidden_states[at : at + t * h * w].detach().float().cpu().clone()
            shown.append(Shown(torch.is_grad_enabled(), (t, h, w), patches))
            at += t * h * w
        return forward(self, hidden_states, grid_thw, *args, **kwargs)

    Tower.forward = recorded
    try:
        yield shown
    finally:
        Tower.forward = forward


@contextmanager
def _logged(said: list[str]) -> Iterator[None]:
    """Collect warnings of `logging`, those of transformers too, whose logger hands nothing on."""

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler, loggers = Keeps(logging.WARNING), [logging.getLogger(name) for name in ("", "transformers")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def _gap(found: Sequence[float], expected: torch.Tensor | None) -> float:
    return float("inf") if expected is None else float((torch.tensor(found) - expected).abs().max())


def _is_shown(medium: Medium, shown: Sequence[Shown]) -> bool:
    same = [one for one in shown if one.grid == medium.grid and one.patches.shape == medium.patches.shape]
    return any(float((one.patches - medium.patches).abs().max()) < CLOSE for one in same)


def _rolled_out(case: Case, trained: Trained) -> list[Reading]:
    """The pixels of the rollout as what is right, for a job of one row with one picture."""
    (row,) = case.job.rows
    first = next(one for one in trained.shown if not one.train)
    return [{row.word: [Medium(row.kind, first.grid, first.patches)]}]


def _short(line: str, at: int = 0) -> str:
    """Cut a message to `SHOWN` letters that hold the place `at`."""
    first = max(0, min(at - SHOWN // 4, len(line) - SHOWN))
    return f"{'...' if first else ''}{line[first : first + SHOWN]}{'...' if first + SHOWN < len(line) else ''}"
