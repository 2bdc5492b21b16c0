"""metrics.math: verdicts on measured pairs, the bounds, and that no bomb gets past them."""

from __future__ import annotations

import subprocess
import sys

import math_verify
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics.math import LONGEST, burden, equivalent, last_boxed, plain_form, stated, view

EQUAL = [
    *[("1/2", "0.5"), (r"$\sqrt8$", r"$2\sqrt2$"), ("140°", "140"), (r"$65^\circ$", "65°"), ("$x^2-1$", "$(x-1)(x+1)$")],
    *[("{1,2}", "{2,1}"), ("10%", "0.1"), ("50%", "50"), ("50%", "0.5"), ("1{,}000", "1000"), ("1/3", ".333333")],
    *[("x=5", "5"), ("5", "x=5"), (r"$5\sqrt3$", "8.660254"), ("$1<x<2$", "(1,2)"), ("101", "100+1=101")],
    *[("$(1,2)$", "(1, 2)"), (r"$4\sqrt2$", r"\boxed{4\sqrt 2}"), (r"$4\sqrt2$", r"4\sqrt{2}"), ("7", "first 5 then 7")],
    *[("A", "A"), ("12", "12 cm"), ("12", "the answer is 12 cm^2"), ("12 cm", "12"), ("4*sqrt(2)", r"$4\sqrt{2}$")],
    *[(r"\frac{1}{2}", "1/2"), (r"\dfrac12", r"\frac12"), (r"$\frac{\pi}{2}$", "pi/2"), ("x^10", "$x^{10}$"), ("1,000", "1000")],
    *[("sqrt(sqrt(16))", "2"), ("5!", "120"), ("2**10", "1024"), (r"$4$", r"4 \text{ cm}"), ("x^2 - 1", "(x-1)*(x+1)")],
]
DIFFERENT = [
    *[("(1,2)", "(2,1)"), ("[1,2]", "(1,2)"), (r"$\pi$", "3.14159"), ("1/3", ".333"), (r"$5\sqrt3$", "8.66"), ("(1,2)", "$1<x<2$")],
    *[("100+1=101x", "101"), (r"4 \sqrt{2}", "4"), ("4", r"4 \sqrt{2}"), ("4", "4*sqrt(2)"), ("4", r"the answer is 4\sqrt{2} cm")],
    *[("2", "4*sqrt(2)"), ("a/b", "b/a"), ("7", ""), ("7", "  ")],
    *[("7", "first 7 then 5"), ("7", "no idea"), ("5", "-5"), ("10", "100")],
    *[("x", "y"), ("3", r"between \frac{1}{2} and 3")],
]


@pytest.mark.parametrize(("gold", "pred"), EQUAL)
def test_equal(gold: str, pred: str) -> None:
    assert equivalent(pred, gold)


@pytest.mark.parametrize(("gold", "pred"), DIFFERENT)
def test_different(gold: str, pred: str) -> None:
    assert not equivalent(pred, gold)


NINES = "9" * 31
BOMBS = [
    *[
        ("9**9**9**9", "tower"),
        ("9^9^9^9", "tower"),
        ("9^{9^{9^9}}", "tower"),
        ("$9^{9^9}$", "tower"),
        ("((9^{99})^{99})^{99}", "exponent"),
    ],
    *[
        ("9^{99999}", "exponent"),
        ("9**99999", "exponent"),
        ("x^{-99999}", "exponent"),
        ("2^{3*99999}", "exponent"),
        (r"2^\frac{9}{1}", "exponent"),
    ],
    *[("9999999!", "exponent"), ("(5!)!", "factorial"), ("5!!", "factorial"), ("(3+2)!", "factorial"), ("(999!)^{99}", "exponent")],
    *[("2^{5!}", "tower"), (r"\exp(\exp(\exp(1)))", "tower"), ("sin(cos(exp(exp(exp(exp(1))))))", "tower"), (r"\cosh(e^{9})", "tower")],
    *[("exp(99999)", "exponent"), (r"\exp 9", "exponent"), (r"\sqrt[99999]{2}", "exponent"), ("(" * 300 + "1" + ")" * 300, "length")],
    *[("(" * 9 + "1" + ")" * 9, "depth"), (f"1+{NINES}", "digits"), ("1" + ",111" * 10, "digits"), ("1" * (LONGEST + 1), "length")],
    *[(r"\int_0^1 x dx", "operator"), (r"\sum_{n=1}^{9} n", "operator")],
    *[(r"\binom{99}{9}", "operator"), (r"\lim_{x\to0} x", "operator")],
    *[("(a+b)(c+d)(e+f)(g+h)(i+j)(k+l)(m+n)(o+p)(q+r)", "terms"), ("(a+b+c+d)^{20}", "terms"), ("((a+b)^{9}+c)^{9}", "terms")],
    *[
        (r"\sin x" * 7, "functions"),
        (r"\sum n", "operator"),
        ("1" + "/3" * 7, "divisions"),
        (r"\exp x", "exponent"),
        ("9 ^ 9 ^ 9", "tower"),
        (r"9^{9 \left( 9^9 \right)}", "tower"),
        ("2^{{9}^{9}}", "tower"),
    ],
]


@pytest.mark.parametrize(("text", "reason"), BOMBS)
def test_bombs_are_over_a_bound_and_compared_as_text(text: str, reason: str) -> None:
    assert burden(text) == reason
    assert not equivalent(text, "7")
    assert not equivalent("7", text)
    assert equivalent(f" {text}", text)


@pytest.mark.parametrize("text", [text for text, _ in BOMBS])
def test_a_bomb_in_disguise_stays_one(text: str) -> None:
    for disguise in (f"${text}$", f"{{{text}}}", f"1+{text}", text.replace("(", r"\left(").replace(")", r"\right)")):
        assert burden(disguise) is not None
    assert not equivalent(rf"\boxed{{{text}}}", "7")


@pytest.mark.parametrize(
    "text",
    [
        *["1/2", r"$x^2-1$", "(x-1)(x+1)(x-2)(x+2)", r"\frac{-b+\sqrt{b^2-4ac}}{2a}", "(1,2)", "2^{10}", "10!", r"e^{-2x}", "9^{99}"],
        *[
            r"\sin^2 x+\cos^2 x",
            r"\exp(-2x)",
            "x^{2024}",
            "(x+1)^{12}",
            "[0, 1) \\cup (2, 3]",
            "a != b",
            r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        ],
        *[r"1\!000", "6.02*10^{23}", r"\{1, 2, 3\}", r"x^\circ", "2^{n+1}", "", ")]}"],
    ],
)
def test_what_people_answer_is_within_the_bounds(text: str) -> None:
    assert burden(text) is None


@pytest.mark.not_fast
def test_the_worst_within_the_bounds_ends() -> None:
    """Each bound at its edge, in a process that is given up after two minutes."""
    worst = [
        *["9" * 30 + "^{2048}", "2048!", "(a+b+c)^{10}", r"\exp(2048)", "1" + "/3" * 6, "((((((((1+2))))))))", "1/0", "0^{-1}"],
        *["-" * 40 + "1", "x^{2048}y^2", "{" + ",".join(str(n) for n in range(40)) + "}"],
    ]
    code = (
        "from vlmrl.metrics.math import burden, equivalent, view\n"
        f"for text in {worst!r}:\n"
        "    assert burden(text) is None, (text, burden(text))\n"
        "    assert equivalent('7', text) is False, text\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # nor does the library talk


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        *[
            (r"so \boxed{4}", "4"),
            (r"\boxed{\frac{1}{2}} or \boxed{ x }", "x"),
            (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
            (r"\fbox{3}", "3"),
        ],
        *[
            (r"\boxed{a \boxed{b} c}", r"a \boxed{b} c"),
            (r"\boxed{1 \boxed{2}", "2"),
            (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
            ("boxed{4}", None),
        ],
        *[
            (r"\boxed{", None),
            ("", None),
            (r"\boxed 4", None),
            ("}}{{", None),
            (r"} \boxed{5} {", "5"),
            (r"\\boxed{4}", None),
            (r"\boxed{}", ""),
        ],
    ],
)
def test_last_boxed(text: str, inner: str | None) -> None:
    assert last_boxed(text) == inner


@given(st.text(alphabet="ab{}\\", max_size=12))
def test_what_is_put_into_a_box_comes_out_of_it(inner: str) -> None:
    depth, balanced, i = 0, True, 0
    while i < len(inner):
        if inner[i] == "\\":
            i += 2
            continue
        depth += {"{": 1, "}": -1}.get(inner[i], 0)
        balanced, i = balanced and depth >= 0, i + 1
    if balanced and depth == 0 and i == len(inner):
        assert last_boxed(rf"x \boxed{{{inner}}} {{") == inner


@pytest.mark.parametrize(
    "soup", ["\\boxed{", "{", "}", "\\", "\n", "$", "(", "^", "9^", "!", "\\frac", "sqrt(", "answer ", "<answer>", "1,"]
)
def test_soup_is_read_to_its_end(soup: str) -> None:
    long = soup * (65536 // len(soup))
    assert last_boxed(long) is None
    assert burden(long) == "length"
    assert not equivalent(long, "7")
    assert not equivalent(long[:LONGEST], "7")


@given(st.text(alphabet="0123456789xy+-*/^(){}[]!.,=<>$\\% ", max_size=40))
def test_the_scanner_takes_anything(text: str) -> None:
    assert burden(text) is None or isinstance(burden(text), str)
    assert isinstance(view(text), str)
    assert not text.strip() or equivalent(text, text)


def test_views() -> None:
    assert view("The answer is 12 cm") == "12"
    assert view("65 °") == "65 °"
    assert view(r"4\sqrt{2}") == r"$4\sqrt{2}$"
    assert view("sqrt(2)/2") == r"$\sqrt{2}/2$"
    assert view("5 or 7") == "5 or 7"
    assert view(r"5 or \frac{7}{2}") == ""
    assert view("$x$ is it") == "$x$ is it"
    assert view("sqrt(2") == r"$\sqrt(2$"
    assert plain_form(r"$ \dfrac12 $.") == r"\frac12"


def test_a_missing_package_says_what_to_install() -> None:
    code = (
        "import sys\n"
        "sys.modules['math_verify'] = None\n"
        "from vlmrl.metrics.math import equivalent\n"
        "assert equivalent('1', '1')\n"
        "try: equivalent('1/2', '0.5')\n"
        "except ImportError as error: assert 'pip install math-verify' in str(error)\n"
        "else: raise SystemExit('no error')\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<think>2 + 3 = 5</think><answer>5</answer>", "5"),
        ("<think>\n\n</think><answer> 5 </answer>", "5"),
        ("The answer is 5 because 3 sides are equal to 4 cm", "5"),
        ("<think>we get $\\frac{1}{2}$</think><answer>$\\sqrt{2}$</answer>", "$\\sqrt{2}$"),
        ("so \\boxed{7}, and 8 is wrong; the answer is 9", "7"),
        ("first 3.5, then **4**", "4"),
        ("nothing", None),
        ("9**9 " * 400, "9"),
    ],
)
def test_what_a_text_states_is_what_math_verify_reads(text: str, found: str | None) -> None:
    assert stated(text) == found
    if len(text) < 100:
        read = math_verify.parse(text)
        assert bool(read) == (found is not None)
        assert found is None or math_verify.verify(read, math_verify.parse(found))


def test_a_result_directly_behind_a_tag_is_stated() -> None:
    """Answers in our form; math-verify wants a blank before the number."""
    assert stated("<think>\n\n</think><answer>5</answer>") == stated("<think>7</think><answer>5</answer>") == "5"
