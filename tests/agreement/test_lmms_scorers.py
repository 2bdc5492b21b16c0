"""Our metrics and the scorers of lmms-eval 0.7.3 give the same numbers on clean answers: without tags, thoughts and stray characters.

The right-hand sides are lmms-eval's own functions. Where ours differ on purpose, the generated inputs leave that out, and a test of
its own says what differs and why.
"""

from __future__ import annotations

import importlib
import os
import random
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("lmms_eval", reason="needs lmms-eval, which has an environment of its own (see the evaluation guide)")

from tests.unit.evals.test_evals_records import make_record
from vlmrl.evals.score.records import Record, by_sample
from vlmrl.evals.score.values import metric_values
from vlmrl.metrics.boxes import Box, centre, iou, parse_boxes, point_in_box
from vlmrl.metrics.numbers import mean_relative_accuracy, parse_number
from vlmrl.metrics.ocr import anls
from vlmrl.metrics.relaxed import contains_answer, open_match
from vlmrl.metrics.temporal import parse_time_span, temporal_iou
from vlmrl.metrics.text import read_choice, relaxed_accuracy

MANY = settings(max_examples=200, deadline=None)
EPSILON = 1e-9
PLACES = {
    "metrics": "lmms_eval.api.metrics",
    "refcoco": "lmms_eval.tasks.refcoco.utils_rec",
    "chartqa": "lmms_eval.tasks.chartqa.utils",
    "mme": "lmms_eval.tasks.mme.utils",
    "mmmu": "lmms_eval.tasks.mmmu.utils",
    "mmvp": "lmms_eval.tasks.mmvp.utils",
    "ocrbench": "lmms_eval.tasks.ocrbench.utils",
    "vsibench": "lmms_eval.tasks.vsibench.utils",
    "charades": "lmms_eval.tasks.charades_sta.utils",
    "timelens": "lmms_eval.tasks.timelens.utils",
}


@pytest.fixture(scope="module")
def lmms() -> Iterator[SimpleNamespace]:
    """lmms-eval's modules by short name. Importing it silences all warnings of the process and may set variables of the environment;
    both are put back at once. Its scorers log every result: that is off meanwhile."""
    filters, environment = list(warnings.filters), dict(os.environ)
    logger = importlib.import_module("loguru").logger
    logger.disable("lmms_eval")
    try:
        modules = SimpleNamespace(**{name: importlib.import_module(place) for name, place in PLACES.items()})
    finally:
        warnings.filters[:] = filters  # type: ignore[index]
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)
    yield modules
    logger.enable("lmms_eval")


# ------------------------------------------------------------------------------------------------------------- RefCOCO

corner, side = st.integers(0, 500), st.integers(1, 500)
boxes = st.builds(lambda x, y, w, h: (x / 1000, y / 1000, (x + w) / 1000, (y + h) / 1000), corner, corner, side, side)


def made(number: int, answer_type: str, scores: dict[str, float], group: str | None = None) -> Record:
    return make_record(f"{number:05d}", answer_type=answer_type, scores=scores, group=group)


def printed(records: list[Record]) -> dict[str, float]:
    """The means that an evaluation prints."""
    values = metric_values(by_sample(records)).items()
    return {name: sum(value for value, _ in found.values()) / len(found) for name, found in values}


@MANY
@given(pred=boxes, gold=boxes)
def test_refcoco_boxes(lmms: Any, pred: Box, gold: Box) -> None:
    assert iou(pred, gold) == pytest.approx(lmms.refcoco.compute_iou(gold, pred), abs=1e-12)
    assert point_in_box(centre(pred), gold) == lmms.refcoco.compute_center_accuracy(gold, pred)
    text = f"The region is [{pred[0]}, {pred[1]}, {pred[2]}, {pred[3]}]."
    assert [list(box) for box in parse_boxes(text) or []] == [lmms.refcoco.parse_float_sequence_within(text)]


def test_refcoco_rates(lmms: Any) -> None:
    state = random.Random(3)
    for _ in range(40):
        rows = [(_box(state), _box(state)) for _ in range(30)]
        ious = [iou(pred, gold) for pred, gold in rows]
        given_rows = [{"pred": list(pred), "bbox": list(gold)} for pred, gold in rows]
        means = printed([made(i, "bbox", {"iou": value}) for i, value in enumerate(ious)])
        assert means["box_iou"] == pytest.approx(lmms.refcoco.refcoco_bbox_rec_aggregation_result(given_rows, "IoU"))
        assert means["box_r@0.5"] == lmms.refcoco.refcoco_bbox_rec_aggregation_result(given_rows, "ACC@0.5")


def _box(state: random.Random) -> Box:
    x, y = state.random() * 0.4, state.random() * 0.4
    return x, y, x + 0.2 + state.random() * 0.4, y + 0.2 + state.random() * 0.4


def test_refcoco_exactly_at_the_threshold_is_a_hit_for_both(lmms: Any) -> None:
    assert lmms.refcoco.compute_accuracy([0, 0, 1, 1], [0, 0, 1, 0.5]) is True
    assert printed([made(0, "bbox", {"iou": iou((0, 0, 1, 0.5), (0, 0, 1, 1))})])["box_r@0.5"] == 1


def test_refcoco_difference_corners_in_the_wrong_order(lmms: Any) -> None:
    """Ours: such a box is no box and overlaps nothing. Theirs: its area is a product of negative sides, and no answer is a box at 0."""
    assert lmms.refcoco.compute_iou([0, 0, 1, 1], [0.5, 0.5, 0, 0]) == 0 == iou((0.5, 0.5, 0, 0), (0, 0, 1, 1))
    assert parse_boxes("somewhere") is None
    assert lmms.refcoco.parse_float_sequence_within("somewhere") == [0, 0, 0, 0]


# ---------------------------------------------------------------------------------------------------- ANLS, ChartQA, OCR

words = st.lists(st.sampled_from(["stop", "Stap", "12", "$1,200", "15%", "go", "x"]), min_size=1, max_size=4).map(" ".join)


@MANY
@given(pred=words, golds=st.lists(words, min_size=1, max_size=3))
def test_anls(lmms: Any, pred: str, golds: list[str]) -> None:
    """Texts with single spaces and none at their ends."""
    theirs = lmms.metrics.anls(golds, [pred])["anls"]
    assert anls(pred, golds) == pytest.approx(theirs, abs=1e-9)


@MANY
@given(pred=st.text("abc", min_size=1, max_size=8), gold=st.text("abc", min_size=1, max_size=8))
def test_anls_of_letters(lmms: Any, pred: str, gold: str) -> None:
    assert anls(pred, [gold]) == pytest.approx(lmms.metrics.anls([gold], [pred])["anls"], abs=1e-9)


def test_anls_difference_spaces_at_the_ends(lmms: Any) -> None:
    """Theirs divides by the lengths before stripping, so spaces raise the score of a wrong answer; ours strips first."""
    assert lmms.metrics.anls(["hello"], ["hexlo" + " " * 5])["anls"] == pytest.approx(0.9)
    assert anls("hexlo" + " " * 5, ["hello"]) == pytest.approx(0.8) == anls("hexlo", ["hello"])


def test_anls_difference_the_last_bit(lmms: Any) -> None:
    """1 - 2/5 is 0.6 and no less: with a threshold of 0.6 ours keeps it, theirs keeps what floating point gives."""
    assert anls("help", ["hello"], threshold=0.6) == 0.6
    assert lmms.metrics.anls(["hello"], ["help"], thresh_hold=0.6)["anls"] in (0, pytest.approx(0.6))


numbers = st.one_of(
    st.integers(-500, 500).map(str), st.integers(-5000, 5000).map(lambda n: f"{n / 10}"), st.integers(0, 300).map("{}%".format)
)
answers = st.one_of(numbers, st.sampled_from(["Red", "red", "blue", "Yes", "no", "1,000", "red.", "0", "0.0", "1e2"]))


@MANY
@given(pred=answers, gold=answers)
def test_chartqa(lmms: Any, pred: str, gold: str) -> None:
    if _at_the_tolerance(pred, gold):
        return
    assert relaxed_accuracy(pred, gold) == bool(lmms.chartqa.relaxed_correctness(pred, gold))


def _at_the_tolerance(pred: str, gold: str) -> bool:
    a, b = (
        float(t.rstrip("%")) / (100 if "%" in t else 1) if t.rstrip("%").replace(".", "").lstrip("-").isdigit() else None
        for t in (pred, gold)
    )
    return a is not None and bool(b) and abs(abs(a - b) / abs(b) - 0.05) < EPSILON


def test_chartqa_close_numbers(lmms: Any) -> None:
    """Numbers near the tolerance, which random pairs seldom are."""
    state = random.Random(5)
    right = 0
    for _ in range(500):
        gold = state.choice([1, -1]) * round(state.uniform(0.01, 5000), state.choice([0, 1, 3])) or 1.0
        pred = gold * (1 + state.uniform(-0.08, 0.08))
        theirs = bool(lmms.chartqa.relaxed_correctness(str(pred), str(gold)))
        assert relaxed_accuracy(str(pred), str(gold)) == theirs
        right += theirs
    assert 200 < right < 450


def test_chartqa_differences(lmms: Any) -> None:
    """Ours takes the tolerance itself whatever the last bit, strips white space, and reads `nan` and `inf` as text."""
    theirs = lmms.chartqa.relaxed_correctness
    assert (relaxed_accuracy(" red ", "red"), theirs(" red ", "red")) == (True, False)
    assert (relaxed_accuracy("nan", "NaN"), theirs("nan", "NaN")) == (True, False)
    edges = [(f"{n * 1.05:.10g}", str(n)) for n in range(1, 200)]
    assert all(relaxed_accuracy(pred, gold) for pred, gold in edges)
    assert any(not theirs(pred, gold) for pred, gold in edges)


@MANY
@given(pred=words, golds=st.lists(words, min_size=1, max_size=3), formula=st.booleans())
def test_ocrbench(lmms: Any, pred: str, golds: list[str], formula: bool) -> None:
    row = {"answer": golds, "dataset": "HME100k" if formula else "IIIT5K", "question_type": "Regular Text Recognition"}
    theirs = lmms.ocrbench.ocrbench_process_results(row, [pred])["ocrbench_accuracy"]["score"]
    assert contains_answer(pred, golds, formula=formula) == bool(theirs)


# ------------------------------------------------------------------------------------------------------------------ MME


@MANY
@given(rows=st.lists(st.tuples(st.sampled_from(["OCR", "count", "code_reasoning"]), st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_mme_scores(lmms: Any, rows: list[tuple[str, bool, bool]]) -> None:
    """The score of a subtask is accuracy (`exact`) plus acc+ (`all_right` of the two questions about a picture), in percent."""
    asked = [(name, i, right) for i, (name, *pair) in enumerate(rows) for right in pair]
    for names in lmms.mme.eval_type_dict.values():
        theirs = [{"question_id": image, "category": name, "score": float(right)} for name, image, right in asked if name in names]
        mine = 0.0
        for subtask in {name for name, _, _ in asked} & set(names):
            of = [made(n, "choice", {"exact": float(right)}, group=str(i)) for n, (name, i, right) in enumerate(asked) if name == subtask]
            mine += 100 * (printed(of)["exact"] + printed(of)["all_right"])
        assert mine == pytest.approx(lmms.mme.mme_aggregate_results(theirs))


# ------------------------------------------------------------------------------------------------------------ MMMU, MMVP

OPTIONS = ["alpha wave", "beta wave", "gamma ray", "delta blue"]
LETTERS = "ABCD"


def mmmu_choice(lmms: Any, text: str) -> str:
    by_letter, letters = lmms.mmmu.get_multi_choice_info(OPTIONS)
    return lmms.mmmu.parse_multi_choice_response(text, letters, by_letter)


@pytest.mark.parametrize(
    "form", ["{}", "({})", "{}.", "({}) {t}", "{}. {t}", "The answer is {}.", "The answer is ({}).", "Answer: {}", "{} {t}"]
)
@pytest.mark.parametrize("i", range(4))
def test_mmmu_letters(lmms: Any, form: str, i: int) -> None:
    text = form.format(LETTERS[i], t=OPTIONS[i])
    assert read_choice(text, OPTIONS) == mmmu_choice(lmms, text) == LETTERS[i]
    for gold in LETTERS:
        assert (read_choice(text, OPTIONS) == gold) == lmms.mmmu.eval_multi_choice(gold, mmmu_choice(lmms, text))


@pytest.mark.parametrize("i", range(4))
def test_mmmu_texts_of_options(lmms: Any, i: int) -> None:
    text = f"what one sees here is the {OPTIONS[i]} that was asked for"
    assert read_choice(text, OPTIONS) == mmmu_choice(lmms, text) == LETTERS[i]


def test_mmmu_choice_differences(lmms: Any) -> None:
    """What says nothing is a random option for them and unreadable for us; of several they take the last, we none."""
    found = {mmmu_choice(lmms, "no idea") for _ in range(60)}
    assert len(found) > 1
    assert read_choice("no idea", OPTIONS) is None
    assert mmmu_choice(lmms, "(A) or (B)") == "B"
    assert read_choice("(A) or (B)", OPTIONS) is None


whole = st.integers(-2000, 2000).map(str)
decimal = st.integers(-20000, 20000).map(lambda n: f"{n / 100:.2f}")
values = st.one_of(whole, decimal, st.sampled_from(["red", "blue cell", "Paris", "b", "x", "nothing at all"]))
forms = [
    "{}",
    "The answer is {}.",
    "so we get {}",
    "x = {}",
    "Therefore the final result is {}.",
    "some lines\nthe answer is {}",
    "It could be {}",
]


@MANY
@given(said=values, gold=values, form=st.sampled_from(forms))
def test_mmmu_open(lmms: Any, said: str, gold: str, form: str) -> None:
    text = form.format(said)
    theirs = lmms.mmmu.eval_open(gold, lmms.mmmu.parse_open_response(text))
    assert open_match(text, [gold]) == theirs
    assert open_match(form.format(gold), [gold])


@MANY
@given(said=values, golds=st.lists(values, min_size=1, max_size=4))
def test_mmmu_open_with_several_gold_answers(lmms: Any, said: str, golds: list[str]) -> None:
    assert open_match(said, golds) == lmms.mmmu.eval_open(golds, lmms.mmmu.parse_open_response(said))


def test_mmmu_open_differences(lmms: Any) -> None:
    """Ours reads numbers whole."""

    def theirs(text: str, gold: str) -> bool:
        return lmms.mmmu.eval_open(gold, lmms.mmmu.parse_open_response(text))

    assert (theirs("room 1,234", "234"), open_match("room 1,234", ["234"])) == (True, False)
    assert (theirs("room 1,234", "1234"), open_match("room 1,234", ["1234"])) == (True, True)
    assert (theirs(".5", "5"), open_match(".5", ["5"])) == (True, False)
    assert (theirs(".5", "0.5"), open_match(".5", ["0.5"])) == (False, True)


@pytest.mark.parametrize("text", ["A", "B.", "(A)", "(b)", "The answer is B", "Option A", "A. cat", "(B) dog"])
def test_mmvp_letters(lmms: Any, text: str) -> None:
    assert read_choice(text, ["cat", "dog"]) == lmms.mmvp._extract_answer_letter(text)


@MANY
@given(right=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_mmvp_pairs(lmms: Any, right: list[tuple[bool, bool]]) -> None:
    flat = [value for pair in right for value in pair]
    rows = [
        lmms.mmvp.mmvp_process_results({"Index": i + 1, "Correct Answer": "(a)"}, ["A" if value else "B"])["mmvp_accuracy"]
        for i, value in enumerate(flat)
    ]
    ours = printed([made(n, "choice", {"exact": float(value)}, group=str(n // 2)) for n, value in enumerate(flat)])
    assert (ours["exact"], ours["all_right"]) == (lmms.mmvp.mmvp_aggregate_results(rows), lmms.mmvp.mmvp_aggregate_pair_results(rows))


# ------------------------------------------------------------------------------------------------------------- VSI-Bench


@MANY
@given(pred=st.integers(0, 4000), gold=st.integers(1, 2000))
def test_vsibench_relative_accuracy(lmms: Any, pred: int, gold: int) -> None:
    if any(abs(abs(pred - gold) / gold - (1 - t / 100)) < EPSILON for t in range(50, 100, 5)):
        return
    assert mean_relative_accuracy(pred, gold) == pytest.approx(vsi(lmms, pred, gold))


def vsi(lmms: Any, pred: float, gold: float) -> float:
    return float(lmms.vsibench.mean_relative_accuracy(pred, gold, start=0.5, end=0.95, interval=0.05))


def test_vsibench_near_numbers(lmms: Any) -> None:
    state = random.Random(7)
    seen = set()
    for _ in range(500):
        gold = state.uniform(0.1, 100)
        pred = gold * (1 + state.uniform(-0.6, 0.6))
        seen.add(round(vsi(lmms, pred, gold), 1))
        assert mean_relative_accuracy(pred, gold) == pytest.approx(vsi(lmms, pred, gold))
    assert len(seen) == 11


def test_vsibench_differences(lmms: Any) -> None:
    """Ours takes an error at a threshold for within it, whatever the last bit; a true 0 has an error of its own."""
    edges = [(gold * (1 + step / 20), gold, step) for gold in (0.1, 0.3, 1.1, 3.3) for step in range(1, 11)]
    assert all(mean_relative_accuracy(pred, gold) == pytest.approx((11 - step) / 10) for pred, gold, step in edges)
    assert any(vsi(lmms, pred, gold) != pytest.approx((11 - step) / 10) for pred, gold, step in edges)
    assert mean_relative_accuracy(0, 0) == 1
    with pytest.raises(ZeroDivisionError):
        vsi(lmms, 0, 0)


@pytest.mark.parametrize("text", ["3", "3.5", "There are 3 boxes", "three", "Three boxes.", "-2", "twenty"])
def test_vsibench_numbers(lmms: Any, text: str) -> None:
    assert parse_number(text) == lmms.vsibench.extract_number(text)


def test_vsibench_number_differences(lmms: Any) -> None:
    """Theirs takes the first number, ours none of several different ones; words beyond twenty are theirs alone."""
    assert (lmms.vsibench.extract_number("3 or 4"), parse_number("3 or 4")) == (3, None)
    assert (lmms.vsibench.extract_number("1,024"), parse_number("1,024")) == (1, 1024)
    assert (lmms.vsibench.extract_number("thirty"), parse_number("thirty")) == (30, None)


# ---------------------------------------------------------------------------------------------------- temporal grounding

spans = st.tuples(st.integers(0, 600), st.integers(1, 300)).map(lambda p: (p[0] / 10, (p[0] + p[1]) / 10))


@MANY
@given(pred=spans, gold=spans)
def test_temporal_iou(lmms: Any, pred: tuple[float, float], gold: tuple[float, float]) -> None:
    ours = temporal_iou(pred, gold, sort_times=True)
    assert ours == pytest.approx(lmms.charades.iou(gold, pred), abs=1e-12)
    assert ours == pytest.approx(lmms.timelens.iou(pred, gold), abs=1e-12)


def test_temporal_rates_from_text(lmms: Any) -> None:
    """R1@m (IoU >= m) and mIoU of the same answers, the unreadable ones among them."""
    state = random.Random(11)
    for _ in range(30):
        rows: list[tuple[tuple[float, float], str]] = []
        for _ in range(40):
            start, length = state.randrange(0, 400) / 10, state.randrange(10, 200) / 10
            moved = start + state.choice([0, 0, 1, -1]) * length / state.choice([2, 3, 10])
            said = state.choice(["{:.1f} - {:.1f}", "The event happens in {:.1f} - {:.1f} seconds.", "from {:.1f} to {:.1f}", "no idea"])
            rows.append(((start, start + length), said.format(max(0.0, moved), max(0.0, moved) + length)))
        rows.append(((2.0, 4.0), "2.0 to 3.0"))  # exactly a half
        read = [(parse_time_span(text), gold) for gold, text in rows]
        ious = [0.0 if span is None else temporal_iou(span, gold, sort_times=True) for span, gold in read]
        theirs = [{f"{i}.mp4>>>it opens>>>[{gold[0]}, {gold[1]}]": text} for i, (gold, text) in enumerate(rows)]
        means = printed([made(i, "time_span", {"tiou": value}) for i, value in enumerate(ious)])
        assert 100 * means["miou"] == pytest.approx(lmms.charades.temporal_grounding_aggregate_miou(theirs, None))
        for m, function in ((0.3, "iou3"), (0.5, "iou5"), (0.7, "iou7")):
            assert 100 * means[f"r1@{m}"] == pytest.approx(getattr(lmms.charades, f"temporal_grounding_aggregate_{function}")(theirs, None))


def test_temporal_differences(lmms: Any) -> None:
    """Theirs merges rows of the same video, words and span, and takes the first pair where ours takes the last; the one of ours is the
    final statement."""
    twice = [{"a.mp4>>>it opens>>>[0, 10]": "0 - 10"}, {"a.mp4>>>it opens>>>[0, 10]": "90 - 99"}]
    assert lmms.charades.temporal_grounding_aggregate_miou(twice, None) == 0
    ious = [temporal_iou(span, (0, 10), sort_times=True) for span in ((0, 10), (90, 99))]
    assert printed([made(i, "time_span", {"tiou": value}) for i, value in enumerate(ious)])["miou"] == 0.5
    text = "1 - 2, or rather 3 - 5"
    assert (lmms.charades.extract_time(text), parse_time_span(text)) == ([[1.0, 2.0]], (3.0, 5.0))
