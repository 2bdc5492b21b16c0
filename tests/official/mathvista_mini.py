"""MathVista testmini: the question file of the authors' repository."""

from __future__ import annotations

from tests.official.case import Case

CASES = (
    Case(
        repository="lupantech/MathVista",
        commit="53d525874bdde205128e6b160b7357a88277d479",
        date="2025-09-28",
        files={"data/testmini.json": "testmini.json"},
        how="unchanged",
        split="testmini",
        records=1000,
        rows=1000,
        looks={
            "mathvista-testmini-1": {"image": "images/1.jpg", "answer_type": "number", "gt": {"number": 1.2}},
            "mathvista-testmini-2": {
                "prompt": "what is the total volume of the measuring cup? (Unit: g)",
                "gt": {"count": 1000},
                "meta": {"origin": "TextVQA"},
            },
            "mathvista-testmini-3": {"options": ["A. 135°", "B. 140°", "C. 145°", "D. 150°"], "answer": "C"},
            "mathvista-testmini-10": {"answer_type": "choice", "answer": "E"},
            "mathvista-testmini-225": {"answer_type": "exact_text", "answer": "[0, 2, 0, 2, 1, 7, 1, 2, 0, 3, 0, 6]"},
            "mathvista-testmini-1000": {"gt": {"count": 9}},
        },
    ),
)
