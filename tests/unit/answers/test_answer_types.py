"""What holds for every answer type: it is registered with its file, its metrics can be shown, and its gold answers score in full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vlmrl.answers
from vlmrl.answers.base import ANSWER_TYPES, METRICS, AnswerType, Metric, answer_type, scored
from vlmrl.answers.episode import EPISODE
from vlmrl.data.encode import instruction
from vlmrl.data.row import parse_row
from vlmrl.errors import RowError
from vlmrl.evals.score.measures import LABELS, allowed_metrics, metrics_of

TYPES = [name for name, kind in ANSWER_TYPES.items() if type(kind).__module__.startswith("vlmrl.answers.") and name != EPISODE]
"""Of the rows of the package; plug-ins of other tests may be registered too."""
TRACK = {"1": [0, 0, 10, 10], "2": [5, 5, 10, 10]}
ROWS: dict[str, dict[str, Any]] = {
    "action": {"gt": {"action": {"action": "click", "coordinate": [5, 5]}}, "answer": '{"action": "click", "coordinate": [5, 5]}'},
    "bbox": {"gt": {"boxes": [[1, 2, 3, 4]]}},
    "choice": {"answer": "B", "options": ["A. cat", "B. dog"]},
    "exact_text": {"answer": "yes"},
    "highlight": {"gt": {"highlights": [[1, 4]]}},
    "math": {"answer": "\\frac{1}{2}"},
    "number": {"answer": "12"},
    "point": {"gt": {"points": [[5, 5]]}},
    "regression": {"answer": "2.5"},
    "segmentation": {"gt": {"segmentation": {"boxes": [0, 0, 9, 9], "positive_points": [[1, 1]], "negative_points": []}}},
    "short_text": {"answer": "EXIT"},
    "spatio_temporal": {"gt": {"tube": {"time": [1, 2], "boxes": TRACK}}},
    "time_span": {"gt": {"time": [1, 2.5]}},
    "tracking": {"gt": {"track": TRACK}},
}


def read(name: str, **changes: Any):
    row = {"id": "a", "task": "t", "answer_type": name, "image": "a.png", "prompt": "What?", "meta": {"frame": "norm1000"}}
    return parse_row(row | ROWS.get(name, {}) | changes, source="r.jsonl:1", media_root=".")


def test_every_module_of_the_package_is_imported() -> None:
    files = {path.stem for path in Path(vlmrl.answers.__file__).parent.glob("*.py")}
    shared = {"__init__", "base", "coordinates", "episode", "foreign", "frame", "ground_truth", "gui_rules", "marks", "tags"}
    assert {type(ANSWER_TYPES[name]).__module__.rpartition(".")[2] for name in TYPES} == files - shared
    assert set(ROWS) == set(TYPES)


@pytest.mark.parametrize("name", TYPES)
def test_a_gold_answer_is_right_and_no_answer_is_wrong(name: str) -> None:
    sample, kind = read(name), ANSWER_TYPES[name]
    pred, _, scores = kind.score(sample.answer, sample)
    assert pred is not None
    assert scores[kind.main] == 1 >= kind.right_at > 0
    assert all(0 <= value <= 1 for value in scores.values())
    missing, _, none = kind.score(None, sample)
    assert (missing, none[kind.main]) == (None, 0)


@pytest.mark.parametrize("name", TYPES)
def test_metrics_are_columns_of_the_type(name: str) -> None:
    kind = ANSWER_TYPES[name]
    assert kind.metrics[0].name in metrics_of(name)
    assert {m.name for m in (*kind.metrics, *kind.more_metrics)} <= set(allowed_metrics(name)) <= set(LABELS)
    assert METRICS["score"].common is False
    assert kind.ask in instruction("answer_only", name)


def test_no_row_is_an_episode_whatever_was_imported_before() -> None:
    """In a process of its own: the type is registered with its package and not with the evaluation."""
    program = (
        "from vlmrl.data.row import parse_row; import sys\n"
        "row = {'id': 'a', 'task': 't', 'answer_type': 'episode', 'image': 'a.png', 'prompt': 'What?', 'answer': 'x'}\n"
        "try: parse_row(row, source='r.jsonl:1', media_root='.')\n"
        "except Exception as error: print(error)\n"
        "print([name for name in sys.modules if name.startswith('vlmrl.evals')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    said, evals = done.stdout.splitlines()
    assert "rows of an environment are tasks without an answer type" in said
    assert evals == "[]"


@pytest.mark.parametrize(("old", "new"), [("ocr", "short_text"), ("open", "exact_text")])
def test_an_old_name_is_an_error_that_says_the_new_one(old: str, new: str) -> None:
    with pytest.raises(RowError, match=f"'answer_type': answer type '{old}' is called '{new}' now"):
        read(old, answer="x")


def test_the_nearest_name_is_told() -> None:
    with pytest.raises(RowError, match="unknown answer type 'tim_span'; did you mean 'time_span'"):
        read("tim_span", answer="x")


def test_a_type_is_registered_whole_and_once() -> None:
    class Bare(AnswerType):
        pass

    with pytest.raises(ValueError, match="answer type 'bare' needs main and metrics and a docstring"):
        answer_type("bare")(Bare)

    class Other(AnswerType):
        """Another kind of box."""

        main = "iou"
        metrics = (Metric("box_iou", "box IoU", scored("iou")),)

    with pytest.raises(ValueError, match="metric 'box_iou' is registered twice"):
        answer_type("other_box")(Other)
    assert "other_box" not in ANSWER_TYPES
    with pytest.raises(ValueError, match="answer type 'bbox' is registered twice"):
        answer_type("bbox")(Other)
