"""MME (arXiv:2306.13394): two yes-or-no questions per picture; accuracy of questions plus accuracy of pictures, in percent.

A subtask's score is between 0 and 200, that of perception (ten subtasks) between 0 and 2000, of cognition (four) between 0 and 800.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

PERCEPTION = ("existence", "count", "position", "color", "posters", "celebrity", "scene", "landmark", "artwork", "OCR")
COGNITION = ("commonsense_reasoning", "numerical_calculation", "text_translation", "code_reasoning")

_CAP = 4096
_LEADING = re.compile(r"[\W_]*(yes|no|y|n)(?![\w'’/])", re.IGNORECASE)
_NAMED = re.compile(r"\banswer(?: is|:| is:)? [\"'*(]{0,3}(yes|no)(?![\w'’])", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """One question, answered."""

    subtask: str
    image: Hashable
    """Of the picture that it is about."""
    right: bool
    """False also for what is neither yes nor no."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subtask:
    """In percent."""

    accuracy: float
    """Of questions."""
    accuracy_plus: float
    """Of pictures: both questions right."""

    @property
    def score(self) -> float:
        """0 to 200."""
        return self.accuracy + self.accuracy_plus


@dataclass(frozen=True, kw_only=True, slots=True)
class Mme:
    """Scores by subtask, and their sums; None where no subtask of the kind was asked."""

    subtasks: Mapping[str, Subtask]
    perception: float | None
    cognition: float | None


def read_yes_no(text: str) -> Literal["yes", "no"] | None:
    """What an answer says: by its first word, else by a word that is named as the answer (`the answer is yes`); None for neither.

    Of two that are named the last counts. Linear in the length of the text.
    """
    tail = text[-_CAP:].strip()
    leading = _LEADING.match(tail)
    found = [leading[1]] if leading is not None else _NAMED.findall(" ".join(tail.split()))
    if not found:
        return None
    return "yes" if found[-1].lower().startswith("y") else "no"


def subtask_score(images: Mapping[Hashable, Sequence[bool]]) -> Subtask:
    """Picture -> whether each of its two questions was answered right.

    Raises:
        ValueError: no pictures, or one that has not two questions.
    """
    odd = [image for image, answers in images.items() if len(answers) != 2]
    if odd:
        raise ValueError(f"subtask_score: picture {odd[0]!r} has {len(images[odd[0]])} answers; MME asks two questions of each")
    if not images:
        raise ValueError("subtask_score: no pictures")
    right = sum(sum(map(bool, answers)) for answers in images.values())
    both = sum(all(answers) for answers in images.values())
    return Subtask(accuracy=100 * right / (2 * len(images)), accuracy_plus=100 * both / len(images))


def mme(answers: Iterable[Answered]) -> Mme:
    """All subtasks, and the sums of the two kinds.

    Raises:
        ValueError: an unknown subtask, or a picture that has not two questions within one.
    """
    images: dict[str, dict[Hashable, list[bool]]] = {}
    for answer in answers:
        if answer.subtask not in (*PERCEPTION, *COGNITION):
            raise ValueError(f"mme: unknown subtask '{answer.subtask}'; there are {', '.join((*PERCEPTION, *COGNITION))}")
        images.setdefault(answer.subtask, {}).setdefault(answer.image, []).append(answer.right)
    subtasks = {name: subtask_score(images[name]) for name in (*PERCEPTION, *COGNITION) if name in images}

    def total(names: Sequence[str]) -> float | None:
        scores = [subtasks[name].score for name in names if name in subtasks]
        return sum(scores) if scores else None

    return Mme(subtasks=subtasks, perception=total(PERCEPTION), cognition=total(COGNITION))
