r"""Mathematical equality of two answers, by math-verify (sympy), within bounds on what it is given.

A policy finds expressions on which computer algebra never ends (`9**9**9**9`, factorials, towers of functions, products that expand
to millions of terms). So `burden` looks at the text first, and what is over a bound is compared as text only. The bounds keep
expressions small; they are no proof that sympy is fast. Its own time limits are signals of the main thread and are turned off:
whoever runs a reward sets the deadline.
"""

from __future__ import annotations

import functools
import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

LONGEST = 400
"""Characters of an expression."""
DIGITS = 30
"""Of one number."""
DEPTH = 8
"""Of brackets."""
DIVISIONS = 6
"""Signs `/`: the time that math-verify takes to read a chain of them doubles with each."""
EXPONENT = 2048
"""Largest integer in an exponent, before `!`, in an exponential function, and as index of a root."""
EXPONENTS = 4096
"""Largest product of all of these in an expression."""
TERMS = 128
"""Terms that an expression may have once its products and powers of sums are expanded."""
FUNCTIONS = 6
"""Names of functions."""

_SPACE = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[,;:! ]|~|\s")
_DIGITS = re.compile(r"\d+")
_NUMBER = re.compile(r"\d+(?:,\d{3}(?!\d))*")
_BARE_NUMBER = re.compile(r"[-+]?[\d.,]+(?:%|\\%|°)?")
_FUNCTION = re.compile(r"sin|cos|tan|cot|sec|csc|log|ln|exp")
_ENDLESS = re.compile(r"\\(?:i{0,3}int|oint|sum|prod|lim|binom|choose|Gamma|partial|[dt]?frac\{d)")
_ROOT = re.compile(r"sqrt\[(\d+)")
_TOKEN = re.compile(
    r"(?P<power>\^|\*\*)|(?P<factorial>!(?!=))|(?P<explodes>\\?(?:exp|sinh|cosh|tanh|coth))"
    r"|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<sum>[-+,;=<>&])"
)
_EXPONENT = re.compile(r"([-+]?\d+)|[-+]?(?:[A-Za-z]|\\[A-Za-z]+(?!\{|[A-Za-z]))")
_NAME = re.compile(r"(?<![\\A-Za-z])(sqrt|pi|sin|cos|tan|cot|log|ln|exp|infty)(?![A-Za-z])")
_WORD = re.compile(r"[A-Za-z]{2,}['’]?[a-z]?(?:\^\{?\d\}?|[²³])?[:,]?")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_LONG_EXPONENT = re.compile(r"(?:\^|\*\*)(-?\d{2,})")
_STATED = (
    r"(?P<stated>\$\$[^$]+\$\$|\$[^$\n]+\$|\\\([^\n]+?\\\)|\\\[.+?\\\]|\\frac\{-?\d+\}\{-?\d+\}"
    r"|(?:^|(?<=[\s=>]))(?:\*\*)?-?(?:\d+(?:[.,]\d+)*|\.\d+)(?:\s*[-+*/^]\s*\(?-?\d+(?:\.\d+)?\)?)*\s*%?)"
)
_STATED_BY = (re.compile(rf"(?i:answer).{{0,50}}?{_STATED}"), re.compile(_STATED))
_BOXES = ("\\boxed{", "\\fbox{")
_MARKS = re.compile(r"\\boxed\{|\\fbox\{|\\.|[{}]", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""Find the content of the `\boxed{...}` (or `\fbox{...}`) that closes last, white space around it off; None without one.

    Braces are balanced; `\{` and `\}` are characters. One pass over the text, whatever it is.
    """
    first = min((place for place in map(text.find, _BOXES) if place >= 0), default=-1)
    if first < 0:
        return None
    while first and text[first - 1] == "\\":
        first -= 1  # `\\boxed{` is a line break and a word
    last = max(map(text.rfind, _BOXES))
    # where the content of each open brace begins; -1 for braces that are no box
    opened: list[int] = []
    found: tuple[int, int] | None = None
    for mark in _MARKS.finditer(text, first):
        if mark[0] == "{":
            opened.append(-1)
        elif mark[0] in _BOXES:
            opened.append(mark.end())
        elif mark[0] == "}" and opened:
            start = opened.pop()
            if start >= 0:
                found = (start, mark.start())
        # all braces are closed and no box follows
        if not opened and mark.start() > last:
            break
    return None if found is None else text[found[0] : found[1]].strip()


def stated(text: str) -> str | None:
    r"""Find what a text in prose states as its result; None if nothing. In the order of math-verify: the last box, else the last formula or
    number shortly behind the word `answer` (of a tag, too), else the last one of all.

    A formula is between `$`, `\(` or `\[`; a number begins the text or follows white space, `=` or, ours, a tag: math-verify reads that of
    `<answer> 5 </answer>` and not that of `<answer>5</answer>`. Only the last 1600 characters are looked at, where there is no box.
    """
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    tail = text[-4 * LONGEST :]
    for pattern in _STATED_BY:
        found = [match["stated"] for match in pattern.finditer(tail)]
        if found:
            return found[-1].removeprefix("**").strip()
    return None


@dataclass(slots=True)
class _Bracket:
    """What is known of an open bracket's content, as a sum of products."""

    start: int = 0
    grows: bool = False
    """Inside an exponent or an exponential function."""
    raises: bool = False
    """Is itself an exponent: its value is the power of the factor before it."""
    terms: int = 0
    term: int = 1
    factor: int = 1

    def add(self) -> None:
        self.terms, self.term, self.factor = self.terms + self.term, 1, 1

    def times(self, terms: int) -> None:
        self.term, self.factor = self.term * terms, terms

    def power(self, k: int) -> None:
        """The last factor to the k: a sum of n terms becomes one of C(n + k - 1, k)."""
        raised = math.comb(self.factor + k - 1, k)
        self.term, self.factor = self.term // self.factor * raised, raised


def burden(text: str) -> str | None:
    """Say why an expression must not be given to computer algebra; None if it may. Linear in the length of the text.

    `length`, `digits`, `depth`, `operator` (integrals, sums, limits, ...), `functions`, `divisions`, `exponent` (too large, or not
    understood), `tower` (growth inside an exponent or an exponential function), `factorial` (of anything but a number), `terms`.
    """
    if len(text) > LONGEST:
        return "length"
    plain = _SPACE.sub("", text).replace("\\{", "(").replace("\\}", ")")
    if any(len(run.replace(",", "")) > DIGITS for run in _NUMBER.findall(plain)):
        return "digits"
    if _ENDLESS.search(plain):
        return "operator"
    if len(_FUNCTION.findall(plain)) > FUNCTIONS:
        return "functions"
    if plain.count("/") > DIVISIONS:
        return "divisions"
    if any(int(index) > EXPONENT for index in _ROOT.findall(plain)):
        return "exponent"
    return _growth(plain)


def _growth(plain: str) -> str | None:
    stack = [_Bracket()]
    exponents = 1
    place = 0
    while (token := _TOKEN.search(plain, place)) is not None:
        place = token.end()
        kind = token.lastgroup
        here = stack[-1]
        largest = 1
        # growth within growth: no bound on the numbers in it says how large the value is
        if kind in ("power", "factorial", "explodes") and here.grows:
            return "tower"
        if kind == "sum":
            here.add()
        elif kind == "open":
            stack.append(_Bracket(start=place, grows=here.grows))
        elif kind == "close" and len(stack) > 1:
            largest = _close(stack, plain[here.start : token.start()])
            # `x^(2)^3`, and below `x^2^3`: a power of an exponent
            if here.raises and plain.startswith(("^", "**"), place):
                return "tower"
        elif kind == "factorial":
            # only a plain number before the sign has a known size
            number = re.search(r"\d{1,30}$", plain[max(0, token.start() - 30) : token.start()])
            if number is None:
                return "factorial"
            largest = int(number[0])
        elif kind == "power" or kind == "explodes":
            if plain.startswith(("(", "{"), place):
                stack.append(_Bracket(start=place + 1, grows=True, raises=kind == "power"))
                place += 1
            else:
                simple = _EXPONENT.match(plain, place) if kind == "power" else None
                if simple is None:
                    return "exponent"
                place = simple.end()
                largest = abs(int(simple[1])) if simple[1] else 1
                if plain.startswith(("^", "**"), place):
                    return "tower"
                if largest <= EXPONENT:
                    here.power(largest)
        exponents *= max(1, largest)
        if largest > EXPONENT or exponents > EXPONENTS:
            return "exponent"
        if len(stack) > DEPTH + 1:
            return "depth"
        if stack[-1].terms + stack[-1].term > TERMS:
            return "terms"
    return None


def _close(stack: list[_Bracket], content: str) -> int:
    """Take the last bracket off the stack and into the one around it; the largest integer in it if it is one that grows."""
    inner = stack.pop()
    largest = max((int(n) for n in _DIGITS.findall(content)), default=1) if inner.grows else 1
    if not inner.raises:
        stack[-1].times(inner.terms + inner.term)
    elif largest <= EXPONENT:
        stack[-1].power(largest)
    return largest


def view(text: str) -> str:
    r"""Find what of an answer is read as mathematics, in a form that math-verify reads as one expression; empty if that is unclear.

    The last box, if there is one. Text with `$`, `\(` or `\[` is left as it is, and so is a plain number (with `%` or a degree
    sign). Otherwise words and units around an expression are taken off and it is put between `$`: math-verify reads `4\sqrt{2}`
    without them as 4. Words within are left to it (it takes the last number), unless there is LaTeX between them.
    """
    boxed = last_boxed(text)
    plain = (text if boxed is None else boxed).strip().rstrip(".")
    if any(mark in plain for mark in ("$", "\\(", "\\[")):
        return plain
    words = plain.split()
    while words and _WORD.fullmatch(words[0]) and not _NAME.fullmatch(words[0]):
        words.pop(0)
    while words and _WORD.fullmatch(words[-1]) and not _NAME.fullmatch(words[-1]):
        words.pop()
    plain = " ".join(words)
    if not plain or _BARE_NUMBER.fullmatch(plain.replace(" ", "")):
        return plain
    latex = _LONG_EXPONENT.sub(r"^{\1}", _NAME.sub(r"\\\1", _roots(plain)))
    if re.search(r"[A-Za-z]{2,}", _COMMAND.sub("", latex)) is None or "\\text" in latex:
        return f"${latex}$"
    return "" if re.search(r"[\\^]", latex) else plain


def _roots(text: str) -> str:
    """`sqrt(...)` as LaTeX. Only the outermost brackets of each; a root that does not close stays as it is."""
    out: list[str] = []
    place = 0
    for match in re.finditer(r"(?<![\\A-Za-z])sqrt\(", text):
        if match.start() < place:
            continue
        depth, end = 1, match.end()
        while end < len(text) and depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        if depth:
            break
        out += [text[place : match.start()], "\\sqrt{", _roots(text[match.end() : end - 1]), "}"]
        place = end
    return "".join(out) + text[place:]


def plain_form(text: str) -> str:
    """Normalise text for comparison as text: the last box, without `$`, spacing commands, white space and a full stop at its end."""
    boxed = last_boxed(text)
    return _SPACE.sub("", text if boxed is None else boxed).replace("$", "").replace("\\dfrac", "\\frac").rstrip(".")


def equivalent(pred: str, gold: str) -> bool:
    r"""Check whether two answers are the same mathematical object, as math-verify 0.9 sees it; equal text (`plain_form`) always is.

    Where either is over a bound (`burden`), text is all that is compared. Of math-verify's ways one should know: a percentage
    equals both the share and the bare number (`50%` is 50 and 0.5); decimals are compared to 6 places; the last part of a chain of
    equations counts, and of several numbers in words the last; `x = 5` is 5; sets have no order, tuples and intervals have one. It is
    not symmetric: an interval may answer for an inequality, not the reverse. Letters are for `metrics.text.read_choice`.

    Raises:
        ImportError: math-verify is missing.
    """
    if not pred.strip():
        return False
    if len(pred) > 4 * LONGEST and last_boxed(pred) is None:
        return pred.strip() == gold.strip()
    # equal texts need no computer algebra, whose libraries are then not even loaded
    if plain_form(pred) == plain_form(gold):
        return True
    ours, theirs = (v if (v := view(text)) and burden(v) is None else "" for text in (pred, gold))
    if not ours or not theirs:
        return False
    verify: Callable[..., bool] = _library().verify
    # the gold answer comes first: math-verify is not symmetric
    return verify(list(_parsed(theirs)), list(_parsed(ours)), timeout_seconds=None)


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> tuple[Any, ...]:
    """Cached because the gold answer is compared with every answer of a group."""
    return tuple(_library().parse(text, parsing_timeout=None))


@functools.lru_cache(maxsize=1)
def _library() -> ModuleType:
    try:
        import math_verify
    except ImportError as error:
        raise ImportError("comparing mathematical answers needs the package 'math-verify': pip install math-verify==0.9.0") from error
    for name in ("parser", "grader"):
        # It warns that its limit is off, which is what we want and no news to the user of a recipe.
        logging.getLogger(f"math_verify.{name}").addFilter(lambda record: not record.getMessage().startswith("Timeout is disabled"))
    return math_verify
