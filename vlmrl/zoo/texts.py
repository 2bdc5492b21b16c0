"""Groups of two levels, as strategies that let the policy write texts for itself form them: which answers came of which text.

Texts have question 1 within their group, in order; the answers to the n-th of them (n from 0) have question n + 2, and question 0 is the
group's own (the need `question_N`).
"""

from __future__ import annotations

from torch import Tensor


def answers_of_texts(group_N: Tensor, question_N: Tensor) -> list[tuple[int, list[int]]]:
    """(place of a text, places of the answers to it), in order of place."""
    texts: dict[int, list[int]] = {}
    answers: dict[tuple[int, int], list[int]] = {}
    for place in range(len(group_N)):
        group, question = int(group_N[place]), int(question_N[place])
        if question == 1:
            texts.setdefault(group, []).append(place)
        elif question > 1:
            answers.setdefault((group, question), []).append(place)
    return sorted((place, answers.get((group, n + 2), [])) for group, places in texts.items() for n, place in enumerate(places))
