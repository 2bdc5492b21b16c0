"""Reward `listener`: reasoning that convinces a second, frozen model, which gets pictures, question and the reasoning. arXiv:2506.22832.

p_L: the listener's probability of the true option, from the log-probabilities of its first token. The paper's reward is
r_format + 0.5 * [answer is right] + 0.5 * p_L: give the columns `format`, `exact` and `listener` those weights.
The paper's text could not be read in full (abstract and reviews only), so these are ours: statements of the answer are removed from
the last three sentences; options are shown in another order than the policy saw, and mapped back; p_L is clamped to [0.01, 0.99], so
that with the weights above every right answer stands above every wrong one; nothing left to listen to gives 1/K; an option outside the
20 most likely tokens has probability 0 before the clamp; without options (`open_answers`) the score is whether the listener's own
answer equals the true one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl import rng
from vlmrl.answers.exact_text import normalise
from vlmrl.answers.tags import parse
from vlmrl.extras.judges.judges import JudgeQuestion, Reader, choice_of
from vlmrl.extras.judges.material import Picture, pictures, without_answer
from vlmrl.extras.judges.services import judged
from vlmrl.extras.judges.verdicts import Check, Unreadable, Verdict, finite
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group, Sample

LETTERS = "ABCDEFGHIJKLMNOPQRST"
TOP = 20
LOWEST, HIGHEST = 0.01, 0.99
_LABEL = re.compile(r"\(?([A-Ta-t])\s*[).:]\s*")


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The options as the listener sees them."""

    question: str
    lines: tuple[str, ...]
    true: int
    """Place of the true option among `lines`."""


@reward("listener", paper="arXiv:2506.22832", service=True)
def listener(
    group: Group, ctx: RewardContext, *, endpoint: dict[str, Any], shuffle: bool = True, open_answers: bool = False
) -> list[float | None]:
    """Probability of the true option for a listener that reads the thought without its answer, in [0.01, 0.99].

    Options are `meta.options`, the true one is the row's answer (letter or text). An answer that is missing scores 0; no thought left
    without its answer gives 1/K. Rows without options are not judged (None), or with `open_answers` score 1 if the listener's answer
    is the true one, else 0. The service must give log-probabilities (`logprobs`, `top_logprobs`), and must not think before it answers.

    Raises:
        RemoteError, ConfigError: the service stays down, or the endpoint is wrong.
        ValueError: the prompt's pixels are not in `ctx.media`, or the true answer is none of the options, or there are more than 20.
    """
    sample = group.prompt.sample
    options = sample.meta.get("options") or ()
    if not options and not open_answers:
        return [None] * len(group.rollouts)
    seen = pictures(group, ctx)
    choices = choices_of(sample, options, shuffle=shuffle) if options else None

    def row(text: str) -> JudgeQuestion | float:
        parsed = parse(text, group.prompt.answer_format)
        thought = without_answer(parsed.thought or "")
        if not parsed.answer:
            return 0.0
        if choices is None:
            return _open_ask(sample, thought, seen) if thought else 0.0
        return _option_ask(choices, thought, seen) if thought else 1 / len(choices.lines)

    def score(verdict: Verdict) -> float:
        if choices is None:
            return float(normalise(verdict["answer"]) == normalise(sample.answer))
        return min(max(verdict["probs"][choices.true], LOWEST), HIGHEST)

    return judged(endpoint, "listener", [row(rollout.text) for rollout in group.rollouts], score)


def choices_of(sample: Sample, options: Sequence[str], *, shuffle: bool) -> Choices:
    """Options in the listener's order, and the question without them.

    Where the question shows the options within its lines, they cannot be taken out, so they stay in their order.

    Raises:
        ValueError: the true answer is none of the options, or there are fewer than 2 or more than 20.
    """
    if not 2 <= len(options) <= len(LETTERS):
        raise ValueError(f"row '{sample.id}' ({sample.source}): listener needs 2 to {len(LETTERS)} options, the row has {len(options)}")
    bare = [_LABEL.sub("", option.strip(), count=1) if _LABEL.match(option.strip()) else option.strip() for option in options]
    lines = sample.question.split("\n")
    shown = {option.strip() for option in options}
    question = "\n".join(line for line in lines if line.strip() not in shown)
    apart = not any(option in question for option in shown)
    order = rng.permutation(len(bare), 0, "listener", sample.id) if shuffle and apart else list(range(len(bare)))
    true = order.index(_true_option(sample, bare))
    return Choices(question=question, lines=tuple(f"{LETTERS[i]}. {bare[place]}" for i, place in enumerate(order)), true=true)


def _true_option(sample: Sample, bare: Sequence[str]) -> int:
    answer = sample.answer.strip()
    letter = re.fullmatch(r"\(?([A-Ta-t])[).:]?", answer)
    if letter and LETTERS.index(letter[1].upper()) < len(bare):
        return LETTERS.index(letter[1].upper())
    match = _LABEL.match(answer)
    texts = [normalise(text) for text in bare]
    for text in (answer, answer[match.end() :] if match else answer):
        if texts.count(normalise(text)) == 1:
            return texts.index(normalise(text))
    raise ValueError(f"row '{sample.id}' ({sample.source}): the answer '{sample.answer}' is none of the options {list(bare)}")


def _option_ask(choices: Choices, thought: str, seen: Sequence[Picture]) -> JudgeQuestion:
    count = len(choices.lines)
    return JudgeQuestion(
        template="listener",
        values={"question": choices.question, "options": "\n".join(choices.lines), "thought": thought},
        check=probs_check(count),
        pictures=seen,
        read=read_probs(count),
        json_reply=False,
        extra={"max_tokens": 1, "logprobs": True, "top_logprobs": TOP},
    )


def _open_ask(sample: Sample, thought: str, seen: Sequence[Picture]) -> JudgeQuestion:
    def check(found: Mapping[str, Any]) -> Verdict:
        answer = found.get("answer")
        if isinstance(answer, int | float) and not isinstance(answer, bool):
            answer = f"{answer:g}"
        if not isinstance(answer, str) or len(answer) > 1000:
            raise Unreadable("missing", "'answer' must be a short text")
        return {"answer": answer}

    return JudgeQuestion(template="listener_open", values={"question": sample.question, "thought": thought}, check=check, pictures=seen)


def read_probs(count: int) -> Reader:
    """Softmax over the letters of `count` options among the most likely first tokens."""

    def read(reply: Mapping[str, Any], ident: str) -> Mapping[str, Any]:
        logprobs = choice_of(reply).get("logprobs")
        tokens = logprobs.get("content") if isinstance(logprobs, dict) else None
        first = tokens[0] if isinstance(tokens, list) and tokens else None
        top = first.get("top_logprobs") if isinstance(first, dict) else None
        if not isinstance(top, list):
            raise Unreadable("no_logprobs", "the reply has no top_logprobs of its first token")
        mass = [0.0] * count
        for entry in top:
            if not isinstance(entry, dict) or not isinstance(entry.get("token"), str):
                raise Unreadable("envelope", "an entry of top_logprobs is not a token with its logprob")
            letter = entry["token"].strip().strip("().:").upper()
            if len(letter) == 1 and letter in LETTERS[:count]:
                mass[LETTERS.index(letter)] += math.exp(finite(entry.get("logprob"), "logprob", -1e5, 1e-3))
        if sum(mass) <= 0:
            raise Unreadable("no_option", "no option is among the most likely first tokens")
        return {"probs": [value / sum(mass) for value in mass]}

    return read


def probs_check(count: int) -> Check:
    """{"probs": `count` numbers in [0, 1] that sum to 1}."""

    def check(found: Mapping[str, Any]) -> Verdict:
        probs = found.get("probs")
        if not isinstance(probs, list) or len(probs) != count:
            raise Unreadable("wrong_count", f"expected {count} probabilities")
        values = [finite(value, "probability", 0.0, 1.0) for value in probs]
        if abs(sum(values) - 1) > 1e-6:
            raise Unreadable("out_of_range", "probabilities do not sum to 1")
        return {"probs": values}

    return check
