"""Geometry3K: the test split unpacked, as a repository of a training project has it, and ten problems of train of the authors' repository.

Both with their diagrams.
"""

from __future__ import annotations

from functools import partial

from tests.official.case import Case

_TEST = partial(
    Case,
    repository="josephtey/multimodal-reasoning",
    commit="9e74b976bf76ff109503c0efe34bec15b79c6fb4",
    date="2024-06-12",
    copied_from="lupantech/InterGPS",
    files={"dataset/eval/geometry_3k/raw_data/": "test/"},
    how="unchanged",
    split="test",
    records=601,
)
_TRAIN = partial(
    Case,
    repository="lupantech/InterGPS",
    commit="99e6b5293c7bb4a5eaf2a370e6b213c79ab33ebb",
    date="2025-03-29",
    files={"annotation_tool/data_collection/data_examples/": "train/"},
    how="unchanged",
    split="train",
    part="10 problems of train",
    records=10,
    rows=10,
)

CASES = (
    _TEST(
        options={"form": "open"},
        rows=601,
        looks={
            "geometry3k-test-2401": {
                "image": "test/2401/img_diagram.png",
                "prompt": "Find the area of the figure.",
                "answer": "60",
                "meta": {"graph": ["Triangle"], "goal": ["Area"]},
            },
            "geometry3k-test-2500": {"prompt": r"Find $m \angle 2$.", "answer": "39"},
            "geometry3k-test-3001": {"answer": "1.05"},
        },
    ),
    _TEST(
        options={"form": "choice"},
        rows=601,
        looks={"geometry3k-test-2401": {"options": ["A. 30", "B. 60", "C. 120", "D. 240"], "answer": "B"}},
    ),
    _TRAIN(
        options={"form": "open"},
        looks={
            "geometry3k-train-11": {
                "image": "train/11/img_diagram.png",
                "prompt": r"In $\odot X, A B=30, C D=30,$ and $m \widehat{C Z}=40$. Find $m\widehat{A B}$",
                "answer": "80",
                "meta": {"graph": ["Circle"], "goal": ["Angle"]},
            },
            "geometry3k-train-15": {"prompt": "Find y.", "answer": r"5 \sqrt { 3 }"},
            "geometry3k-train-20": {"answer": "16"},
        },
    ),
)
