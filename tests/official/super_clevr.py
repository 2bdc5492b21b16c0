"""Super-CLEVR: the 200 counting problems of R1-V."""

from __future__ import annotations

from tests.official.case import Case

CASES = (
    Case(
        repository="Deep-Agent/R1-V",
        commit="bbbbe3dc1ea6a74ce31c118c1722b1ee73e372ba",
        date="2025-03-02",
        files={"src/eval/prompts/superclevr_test200_counting_problems.jsonl": "superclevr_test200_counting_problems.jsonl"},
        how="unchanged",
        split="test200",
        records=200,
        rows=200,
        looks={
            "super_clevr-test200-001": {
                "image": "images/superCLEVR_new_025000.png",
                "prompt": "How many different items are there in the image?",
                "gt": {"count": 4},
            },
            "super_clevr-test200-200": {"image": "images/superCLEVR_new_025199.png", "gt": {"count": 3}},
        },
    ),
)
