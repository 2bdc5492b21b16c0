"""CLEVR: the first nine validation questions, which a change proposed to a repository of a reasoning method has for its tests."""

from __future__ import annotations

from tests.official.case import Case

CASES = (
    Case(
        repository="kexinyi/ns-vqa",
        commit="abaabc51c731c9952a03e4c47b07f1484c3048c8",
        date="2023-03-27",
        copied_from="CLEVR's home page",
        files={"reason/test/data/orig-val.json": "questions/CLEVR_val_questions.json"},
        how="renamed",
        split="val",
        part="the first 9 questions",
        records=9,
        rows=2,
        skipped={"not a counting question": 7},
        looks={
            "clevr-val-000005": {
                "image": "images/val/CLEVR_val_000000.png",
                "prompt": "What number of other objects are the same size as the purple shiny object?",
                "gt": {"count": 2},
                "meta": {"family": 40},
            },
            "clevr-val-000006": {"gt": {"count": 2}},
        },
    ),
)
