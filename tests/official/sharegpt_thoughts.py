"""Conversations in the ShareGPT layout: LLaMA-Factory's demo with its three clips, which are in the repository."""

from __future__ import annotations

from tests.official.case import Case

CASES = (
    Case(
        repository="hiyouga/LLaMA-Factory",
        commit="ff6d4d12eeb035d6ce06805a5733dd7b29f2ac30",
        date="2026-08-18",
        files={"data/mllm_video_demo.json": "train.json", "data/mllm_demo_data/": "mllm_demo_data/"},
        how="renamed",
        split="train",
        options={"answer_type": "exact_text"},
        part="the demo of LLaMA-Factory, three conversations without thoughts, with their clips",
        records=3,
        rows=3,
        looks={
            "sharegpt_thoughts-train-000002": {
                "prompt": "<video>What is she doing?",
                "answer": "She is cooking.",
                "videos": ["mllm_demo_data/2.avi"],
            },
        },
    ),
)
