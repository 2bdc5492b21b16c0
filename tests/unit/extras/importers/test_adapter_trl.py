"""importers.trl, and the rules that hold for all shapes: ids, instructions, placeholders, wrapped answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.foreign import earns_full_reward, only_detected_by, read, refused
from vlmrl.data.adapters import Importer, ImportOptions
from vlmrl.errors import DataError, RowError
from vlmrl.extras.importers.text import cut_instructions, place_media, unwrap

CHAT = [{"role": "system", "content": "Answer in <answer></answer>."}, {"role": "user", "content": "How many cats?"}]


def row(**changes: Any) -> dict[str, Any]:
    out = {"prompt": CHAT, "image": "a.png", "solution": "<answer>3</answer>", "licence": "CC0", **changes}
    return {key: value for key, value in out.items() if value is not None}


def test_a_row() -> None:
    sample = read(row(), answer_type="number", task="counting")
    assert (sample.question, sample.answer, dict(sample.gt), sample.task) == ("How many cats?", "3", {"number": 3}, "counting")
    assert [(ref.kind, ref.path) for ref in sample.media] == [("image", "a.png")]
    assert dict(sample.meta) == {"licence": "CC0", "system": "Answer in <answer></answer>."}
    earns_full_reward(sample)


def test_it_is_known_by_its_keys() -> None:
    only_detected_by("trl", row(), {"prompt": "Q", "answer": "A"}, {"prompt": CHAT, "images": [], "completion": "A"})


def test_text_prompts_and_typed_parts() -> None:
    parts = [{"type": "image"}, {"type": "image", "image": "b.png"}, {"type": "text", "text": "Same?"}]
    inside = read(row(image=None, prompt=[{"role": "user", "content": parts[1:]}], answer="yes"), answer_type="exact_text")
    assert ([ref.path for ref in inside.media], inside.question, inside.answer) == (["b.png"], "Same?", "yes")
    column = read(
        row(prompt=[{"role": "user", "content": [parts[0], parts[0], parts[2]]}], image=["x.png", "y.png"]), answer_type="exact_text"
    )
    assert [ref.path for ref in column.media] == ["x.png", "y.png"]
    assert read(row(prompt="What?"), answer_type="short_text").question == "What?"
    late = read(row(prompt=[{"role": "user", "content": [parts[2], parts[0]]}]), answer_type="exact_text")
    assert (late.question, late.question_first) == ("Same?", True)
    for sample in (inside, column, late):
        earns_full_reward(sample)


def test_where_the_answer_is() -> None:
    completion = [{"role": "assistant", "content": "<think>two and one</think><answer>3</answer>"}]
    sample = read(row(solution=None, completion=completion), answer_type="exact_text")
    assert (sample.answer, sample.thought) == ("3", "two and one")
    assert read(row(answer="4"), answer_type="exact_text").answer == "4"  # before 'solution', which goes to meta
    assert read(row(answer="4"), answer_type="exact_text").meta["solution"] == "<answer>3</answer>"
    assert read(row(solution=7), answer_type="number").answer == "7"


@pytest.mark.parametrize(
    ("changes", "reason", "match"),
    [
        ({"solution": None}, "missing_key", "'completion' is needed"),
        ({"prompt": [*CHAT, {"role": "assistant", "content": "3"}]}, "turns", "ends with a turn of the assistant"),
        ({"prompt": [*CHAT, CHAT[1]]}, "turns", r"prompt\[2\]"),
        ({"prompt": [{"role": "tool", "content": "x"}]}, "turns", "known: system"),
        ({"prompt": []}, "bad_type", "'prompt'"),
        ({"images": ["b.png"]}, "bad_value", "both given"),
        ({"image": {"path": "a.png", "width": 3}}, "unknown_key", r"images\[0\]\.width"),
        ({"image": "https://x.org/a.png"}, "forbidden", "URL"),
        ({"image": "/data/a.png"}, "forbidden", "absolute"),
        ({"image": [["a.png", "b.png"]]}, "bad_type", "list of frames"),
        ({"solution": "<answer>3"}, "answer", "does not close"),
        ({"solution": "so <answer>3</answer>"}, "answer", "outside"),
        ({"solution": "<answer> </answer>"}, "answer", "empty"),
        ({"solution": "three cats"}, "answer", "not one number"),
        ({"solution": True}, "answer", "bool"),
        ({"prompt": "Which of <image> is it?"}, "placeholder", "within its text"),
        ({"prompt": "<image><image>Which?"}, "placeholder", "2 <image>"),
        ({"solution": float("nan")}, "not_finite", "solution"),
    ],
)
def test_refused(changes: dict[str, Any], reason: str, match: str) -> None:
    refused(row(**changes), reason, match, answer_type="number", adapter="trl")


def test_the_answer_type_is_never_guessed() -> None:
    refused(row(), "answer_type", "set 'answer_type'")
    assert read(row(options=["cat", "dog"], solution="dog")).answer_type == "choice"  # options leave one reading


@pytest.mark.parametrize(
    ("answer", "options", "letter"),
    [
        ("B", ["A. cat", "B. dog"], "B"),
        ("(b)", ["A. cat", "B. dog"], "B"),
        ("B. dog", ["(A) cat", "(B) dog"], "B"),
        ("Dog", ["cat", "dog"], "B"),
        ("A", ["dog", "cat"], "A"),
        ("C", [], "C"),
    ],
)
def test_choices(answer: str, options: list[str], letter: str) -> None:
    sample = read(row(solution=answer, options=options), answer_type="choice")
    assert sample.answer == letter
    earns_full_reward(sample)
    if options == ["cat", "dog"]:
        assert sample.question == "How many cats?\nA. cat\nB. dog"


@pytest.mark.parametrize(
    ("answer", "options"),
    [
        ("C", ["A. cat", "B. dog"]),
        ("B. cat", ["A. cat", "B. dog"]),
        ("cat", ["cat", "cat"]),
        ("B", ["B", "A"]),
        ("cow", []),
        ("2", ["x", "y"]),
    ],
)
def test_choices_that_mean_nothing_or_two_things(answer: str, options: list[str]) -> None:
    refused(row(solution=answer, options=options), "answer", answer_type="choice")


def test_options_must_be_in_order() -> None:
    refused(row(solution="A", options=["B. x", "A. y"]), "options", "not A, B", answer_type="choice")


def test_ids_are_stable_and_differ_by_place() -> None:
    first, again, second = (read(row(), answer_type="exact_text", place=place).id for place in (4, 4, 5))
    assert first == again != second
    assert first[:16] == second[:16]
    assert first.endswith("-4")
    assert read(row(solution="4"), answer_type="exact_text", place=4).id != first
    assert read(row(id=17), answer_type="exact_text").id == "17"
    refused(row(id=1.5), "bad_type", "'id'", answer_type="exact_text")


def test_a_file_has_one_shape() -> None:
    importer = Importer(ImportOptions(answer_type="exact_text"))
    with pytest.raises(RowError, match="unknown_shape"):
        importer.rows({"strange": 1}, where="f:1", place=1)  # decides nothing
    importer.rows(row(), where="f:2", place=2)
    assert importer.chosen == "trl"
    assert "f:2" in str(importer.note())
    with pytest.raises(RowError, match="shape 'easyr1', the file is 'trl', as f:2 is") as caught:
        importer.rows({"problem": "Q", "answer": "A"}, where="f:3", place=3)
    assert caught.value.reason == "mixed_shapes"
    with pytest.raises(RowError, match="'adapter' says"):
        Importer(ImportOptions(adapter="verl", answer_type="exact_text")).rows(row(), where="f:1", place=1)
    with pytest.raises(DataError, match="known: vlmrl, tasks, trl"):
        Importer(ImportOptions(adapter="trlx"))


def test_rows_of_our_own_schema_pass_untouched() -> None:
    own = {"id": "a", "task": "t", "answer_type": "exact_text", "prompt": "Q", "answer": "A"}
    importer = Importer(ImportOptions(answer_type="number"))
    assert importer.rows(own, where="f:1", place=1)[0] is own
    assert importer.note() is None


@pytest.mark.parametrize(
    ("question", "kept", "cut"),
    [
        ("How many? Put it in <answer></answer> tags.", "How many?", "Put it in <answer></answer> tags."),
        ("<image>Find x.\nThe final answer MUST BE put in \\boxed{}.", "<image>Find x.", "The final answer MUST BE put in \\boxed{}."),
        ("Think in <think> first. Find x.", "Find x.", "Think in <think> first."),
        ("What does the <answer> tag say?", "What does the <answer> tag say?", ""),
        ("Read <answer> there. Then count.", "Then count.", "Read <answer> there."),
        ("A. Then <answer> stands here. Count.", "A. Then <answer> stands here. Count.", ""),  # the middle is left alone
        ("Find x. Box it as \\boxed{}.<image>", "Find x.<image>", "Box it as \\boxed{}."),
    ],
)
def test_instructions(question: str, kept: str, cut: str) -> None:
    assert cut_instructions(question) == (kept, cut)


def test_instructions_in_rows() -> None:
    asking = row(prompt="How many? Use <answer></answer>.")
    assert read(asking, answer_type="exact_text").meta["instructions"] == "Use <answer></answer>."
    assert read(asking, answer_type="exact_text", instructions="keep").question == "How many? Use <answer></answer>."
    refused(row(prompt="Use <answer></answer>."), "bad_value", "nothing but instructions", answer_type="exact_text")


@pytest.mark.parametrize(
    ("question", "images", "expected"),
    [
        ("<image 1><image 2>Same?", 2, "<image><image>Same?"),
        ("Same? <image 1> <image 2>", 2, "Same? <image> <image>"),
        ("Is <image 1> like <image 2>?", 2, "<image><image>Is image 1 like image 2?"),
        ("<image_1>Is image 1 red?", 1, "<image>Is image 1 red?"),
        ("<image 1> What is in <image 1>?", 1, "<image>What is in image 1?"),
        ("No placeholder", 2, "No placeholder"),
    ],
)
def test_numbered_placeholders(question: str, images: int, expected: str) -> None:
    assert place_media(question, [], images, 0) == (expected, [])


def test_numbered_placeholders_in_options() -> None:
    assert place_media("Which is red?", ["<image 1>", "<image 2>"], 2, 0) == ("<image><image>Which is red?", ["image 1", "image 2"])


@pytest.mark.parametrize(
    ("question", "images"), [("<image 1>Q", 2), ("<image 2><image 1>Q", 2), ("<image 3>Q", 2), ("<image 1><image>Q", 2), ("<video 1>Q", 1)]
)
def test_numbers_without_their_media(question: str, images: int) -> None:
    with pytest.raises(RowError) as caught:
        place_media(question, [], images, 0)
    assert caught.value.reason == "placeholder"


@pytest.mark.parametrize(
    ("text", "answer", "thought"),
    [
        ("B", "B", None),
        (" <answer> B </answer>\n", "B", None),
        ("<think>t</think><answer>B</answer>", "B", "t"),
        ("<think>a <answer>C</answer> b</think>B", "B", "a <answer>C</answer> b"),
        ("<answer>A</answer><answer>B</answer>", "B", None),
        ("<Thinking>t</THINKING><Answer>B</Answer>", "B", "t"),
        ("\\boxed{48}", "48", None),
        ("$\\boxed{\\frac{1}{2}}$", "\\frac{1}{2}", None),
        ("\\boxed{1} and \\boxed{2}", "\\boxed{1} and \\boxed{2}", None),
        ("x < 3", "x < 3", None),
    ],
)
def test_unwrapping(text: str, answer: str, thought: str | None) -> None:
    assert unwrap(text) == (answer, thought)


@pytest.mark.parametrize("text", ["", "<answer></answer>", "B</answer>", "<think>t", "<answer>a<answer>b</answer>", "x<answer>B</answer>"])
def test_broken_wrapping(text: str) -> None:
    with pytest.raises(RowError):
        unwrap(text)


@given(st.text(alphabet="ab<>/ \\{}$think anwer", max_size=60))
def test_unwrapping_answers_or_refuses(text: str) -> None:
    try:
        answer, _ = unwrap(text)
    except RowError:
        return
    assert answer == answer.strip() != ""


@given(st.text(alphabet="xyz0189 .,-", min_size=1).map(str.strip).filter(bool), st.sampled_from(["exact_text", "short_text", "math"]))
def test_any_plain_answer_round_trips(answer: str, kind: str) -> None:
    sample = read(row(solution=f"<answer>{answer}</answer>"), answer_type=kind)
    assert sample.answer == answer
    earns_full_reward(sample)


@given(st.decimals(min_value=-99999, max_value=99999, places=2, allow_nan=False))
def test_any_number_round_trips(number: Any) -> None:
    earns_full_reward(read(row(solution=f"{number:,}"), answer_type="number"))
