"""GeoQA: the test prompts of R1-V."""

from __future__ import annotations

from tests.official.case import Case

CASES = (
    Case(
        repository="Deep-Agent/R1-V",
        commit="bbbbe3dc1ea6a74ce31c118c1722b1ee73e372ba",
        date="2025-03-02",
        files={"src/eval/prompts/geoqa_test_prompts.jsonl": "geoqa_test_prompts.jsonl"},
        how="unchanged",
        split="test",
        records=754,
        rows=754,
        looks={
            "geoqa-test-001": {
                "image": "Geo170K/images/test/0.png",
                "answer_type": "math",
                "answer": "140°",
                "prompt": "As shown in the figure, in triangle ABC, it is known that angle A = 80.0, angle B = 60.0, DE parallel  BC, "
                "then the size of angle CED is ()",
            },
            "geoqa-test-754": {"image": "Geo170K/images/test/753.png", "answer": "15°"},
        },
    ),
)
