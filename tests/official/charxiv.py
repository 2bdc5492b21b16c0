"""CharXiv: the reasoning questions of the authors' repository."""

from __future__ import annotations

from tests.official.case import Case

CASES = (
    Case(
        repository="princeton-nlp/CharXiv",
        commit="7ebe88f78dee387691551f071abcb2b9e1a8025b",
        date="2025-04-22",
        files={"data/reasoning_val.json": "data/reasoning_val.json"},
        how="unchanged",
        split="val",
        records=1000,
        rows=1000,
        looks={
            "charxiv-val-0004": {
                "images": ["images/7.jpg"],
                "answer_type": "exact_text",
                "answer": "Kansas City",
                "meta": {"category": "text in chart"},
            },
            "charxiv-val-0011": {"images": ["images/21.jpg"], "answer": "case, det", "meta": {"category": "text in general"}},
            "charxiv-val-0008": {"answer_type": "number", "gt": {"number": 94.0}, "meta": {"category": "number in chart"}},
            "charxiv-val-0009": {
                "prompt": "How many data points have a DAVIS-2017 J & F Mean score of less than 50? Answer with a whole number.",
                "gt": {"number": 3.0},
                "meta": {"category": "number in general"},
            },
            "charxiv-val-0999": {"images": ["images/2399.jpg"], "answer": "Cox Boosting"},
        },
    ),
)
