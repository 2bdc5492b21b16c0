"""Video-R1: a list of the project's evaluation, which has the form of its training lists; those are larger than public copies go."""

from __future__ import annotations

from tests.official.case import Case

CASES = (
    Case(
        repository="qizhongtan/Video-ToC",
        commit="bbf9451a05a09a2b061072503a83b4842efb802a",
        date="2026-04-23",
        files={"Evaluation/eval_vsibench.json": "Video-R1-260k.json"},
        how="renamed",
        copied_from="Video-R1's evaluation set",
        part="not the training records: a list of the project's evaluation, which has their keys",
        split="rl",
        records=5130,
        rows=5130,
        looks={
            "video_r1-rl-000001": {
                "prompt": "How many table(s) are in this room?",
                "answer_type": "regression",
                "gt": {"number": 4},
                "videos": ["Evaluation/VSIBench/arkitscenes/41069025.mp4"],
                "meta": {"imported_id": "0"},
            },
            "video_r1-rl-005130": {
                "answer_type": "choice",
                "options": [
                    "A. Turn Right, Turn Left, Turn Left",
                    "B. Turn Right, Turn Right, Turn Left",
                    "C. Turn Right, Turn Right, Turn Right",
                    "D. Turn Back, Turn Right, Turn Left",
                ],
                "answer": "A",
            },
        },
    ),
)
