"""Text answers: edit distance, ROUGE, relaxed accuracy, and which option of a multiple choice is meant."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from types import ModuleType

from vlmrl.metrics.numbers import relative_error

_CAP = 4096
"""Characters of an answer that are looked at for an option, from its end."""
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(rf"[{_IDEOGRAPHS}]|[^\W_{_IDEOGRAPHS}]+")
"""A word of letters and digits; in scripts without spaces, one character."""
_PLAIN_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d{1,3})?(%?)", re.IGNORECASE)
_LABEL = re.compile(r"[(\[]?([A-Za-z])(?:[)\]]?[.:]|[)\]])\s*")
_ONLY_LETTER = re.compile(r"[(\[]?([A-Za-z])[)\]]?[.:,]?")
_LABELLED = re.compile(r"[(\[]([A-Za-z])[)\]]|(?<![\w'’.])([A-Z])(?:[):](?!\w)|\.(?=\s|$))")
"""`(B)`, `[b]`, `B)`, `B:`, `B.`: a letter that nothing else can be meant by."""
_NAMED = re.compile(r"\b(?:answer|option|choice)(?: is|:| is:)? [\"'*]{0,3}([A-Z])(?![\w'’])")
_BARE = re.compile(r"(?<![\w'’])([A-Z])(?![\w'’])")
_ARTICLE = re.compile(r"(?<![\w'’])[AI] (?=(?!(?:and|or|is|nor|not)\b)[a-z])")
"""A capital letter that is a word of a sentence; before these words it is a name."""


def collapse(text: str) -> str:
    """Normalise a text: lower case, single spaces."""
    return " ".join(text.lower().split())


def _distances() -> ModuleType:
    try:
        from rapidfuzz import distance
    except ImportError as error:
        raise ImportError("edit distances and ROUGE need the package 'rapidfuzz', which is missing: pip install rapidfuzz") from error
    return distance


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Compute the Levenshtein distance of two texts (by characters) or two lists of words (by words)."""
    return int(_distances().Levenshtein.distance(a, b))


# ---------------------------------------------------------------------------------------------------------------- ROUGE


def rouge_tokens(text: str) -> list[str]:
    """Split text into lower-case words of letters and digits; ideographs one by one. No stemming: the reference package's option is off."""
    return _TOKEN.findall(text.lower())


def _f1(overlap: int, pred: int, gold: int) -> float:
    return 2 * overlap / (pred + gold) if pred + gold else 0.0


def rouge_n(pred: Sequence[str], gold: Sequence[str], n: int) -> float | None:
    """Compute F1 of the n-grams of tokens, with their multiplicity.

    Returns:
        In [0, 1]; None for a gold answer of fewer than n tokens.

    Raises:
        ValueError: n < 1.
    """
    if n < 1:
        raise ValueError(f"rouge_n: n must be at least 1, got {n}")
    ours, theirs = _ngrams(pred, n), _ngrams(gold, n)
    if not theirs:
        return None
    return _f1(sum((ours & theirs).values()), sum(ours.values()), sum(theirs.values()))


def _ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[i:] for i in range(n)), strict=False))


def rouge_l(pred: Sequence[str], gold: Sequence[str]) -> float | None:
    """Compute F1 of the longest common subsequence of tokens, in [0, 1]; None for a gold answer without tokens."""
    if not gold:
        return None
    return _f1(int(_distances().LCSseq.similarity(pred, gold)), len(pred), len(gold))


def mean_rouge(pred: str, gold: str) -> float | None:
    """Average ROUGE-1, ROUGE-2 and ROUGE-L F1, as rewards of open answers use it.

    A gold answer of one word has no ROUGE-2: the mean is then over the other two, so that the gold answer itself has 1.

    Returns:
        In [0, 1]; None for a gold answer without words.
    """
    ours, theirs = rouge_tokens(pred), rouge_tokens(gold)
    values = [v for v in (rouge_n(ours, theirs, 1), rouge_n(ours, theirs, 2), rouge_l(ours, theirs)) if v is not None]
    return sum(values) / len(values) if values else None


# ------------------------------------------------------------------------------------------------------ relaxed accuracy


def relaxed_accuracy(pred: str, gold: str, *, tolerance: float = 0.05) -> bool:
    """Check by ChartQA's measure (arXiv:2203.10244): a number may be off by `tolerance` of the true one, other text must be equal.

    As the usual evaluation code does it: `5%` is 0.05, case does not count, `1,000` is not a number, and against a true number of 0
    the texts are compared. Unlike it: words such as `nan` and `inf` are text, and exactly the tolerance is accepted whatever the
    last bit.
    """
    ours, theirs = _as_number(pred), _as_number(gold)
    if ours is not None and theirs:
        return relative_error(ours, theirs) <= tolerance
    return pred.strip().lower() == gold.strip().lower()


def _as_number(text: str) -> float | None:
    match = _PLAIN_NUMBER.fullmatch(text.strip()) if len(text) <= 64 else None
    if match is None:
        return None
    return float(match[0].rstrip("%")) / (100 if match[1] else 1)


# --------------------------------------------------------------------------------------------------------------- choices


def option_texts(options: Sequence[str]) -> dict[str, str]:
    """Map letters to the texts (`collapse`) of options in order. Labels of their own (`A. cat`, `(B) dog`) are taken off if all are right.

    Raises:
        ValueError: more than 26 options.
    """
    if len(options) > 26:
        raise ValueError(f"option_texts: {len(options)} options, there are letters for 26")
    letters = [chr(ord("A") + i) for i in range(len(options))]
    labels = [_LABEL.match(option.strip()) for option in options]
    if all(label is not None and label[1].upper() == letter for label, letter in zip(labels, letters, strict=True)):
        return {x: collapse(o.strip()[m.end() :]) for x, o, m in zip(letters, options, labels, strict=True) if m is not None}
    return {letter: collapse(option) for letter, option in zip(letters, options, strict=True)}


def read_choice(answer: str, options: Sequence[str] = ()) -> str | None:
    """Find the letter (upper case) of the option that an answer means; None if it means none, several, or one that does not exist.

    Read are a letter alone (`B`, `(b)`, `B.`), the text of an option alone, labelled letters (`B. a cat`, `(B)`), letters that are
    named (`the answer is B`), single capital letters in a sentence (not `A` or `I` as a word), and the text of an option in a
    sentence. The first of these that says anything decides; different letters in it, or a letter next to the text of another
    option, are ambiguous. Negations are not understood. Linear in the length of the text.

    Returns:
        A letter of the options; without options any letter.
    """
    texts = option_texts(options)
    plain = " ".join(answer[-_CAP:].split()).strip("\"'*` ")
    alone = _ONLY_LETTER.fullmatch(plain)
    if alone is not None:
        return _existing({alone[1].upper()}, texts)
    # before letters are looked for: an option's own text may hold a letter that means another option
    whole = {letter for letter, text in texts.items() if text and collapse(plain).rstrip(".") == text.rstrip(".")}
    if whole:
        return _existing(whole, texts)
    letters = _letters(plain)
    mentioned = _mentioned(collapse(plain), texts)
    # the letter of one option beside the text of another: which is meant cannot be told
    if letters and len(mentioned) == 1 and mentioned != letters:
        return None
    return _existing(letters or mentioned, texts)


def _letters(plain: str) -> set[str]:
    """The letters that the strictest way of writing them finds."""
    found = {(a or b).upper() for a, b in _LABELLED.findall(plain)}
    leading = _LABEL.match(plain)
    if leading is not None:
        found.add(leading[1].upper())
    found |= set(_NAMED.findall(_ARTICLE.sub("", plain)))
    return found or set(_BARE.findall(_ARTICLE.sub("", plain)))


def _mentioned(plain: str, texts: Mapping[str, str]) -> set[str]:
    """Letters of the options whose text stands in the answer, without those that are part of a longer one there."""
    found = {x for x, text in texts.items() if text and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", plain)}
    return {x for x in found if not any(texts[x] in texts[y] and texts[x] != texts[y] for y in found)}


def _existing(letters: set[str], texts: Mapping[str, str]) -> str | None:
    letter = next(iter(letters)) if len(letters) == 1 else None
    return None if letter is None or (texts and letter not in texts) else letter
