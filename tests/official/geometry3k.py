"""Geometry3K: the ten problems that the authors' repository shows unpacked, with their diagrams."""

from __future__ import annotations

from functools import partial

from tests.official.case import Case

_OF = partial(
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
    _OF(
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
    _OF(
        options={"form": "choice"},
        looks={
            "geometry3k-train-11": {"options": ["A. 30", "B. 40", "C. 60", "D. 80"], "answer": "D"},
            "geometry3k-train-18": {"answer": "C"},
        },
    ),
)
