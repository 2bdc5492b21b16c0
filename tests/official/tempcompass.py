"""TempCompass: the question files of the authors' repository."""

from __future__ import annotations

from functools import partial

from tests.official.case import Case

_OF = partial(Case, repository="llyx97/TempCompass", commit="e1b463166400633e6061962d890a9ae85db29f70", date="2025-04-04", how="unchanged")

CASES = (
    _OF(
        split="multi-choice",
        files={"questions/multi-choice.json": "questions/multi-choice.json"},
        records=1580,
        rows=1580,
        looks={
            "tempcompass-multi-choice-0000": {
                "video": "videos/1034419625.mp4",
                "prompt": "What is the man doing in the video?",
                "options": ["A. dunking a basketball", "B. dribbling a basketball", "C. passing a basketball"],
                "answer": "A",
                "meta": {"category": "action"},
            },
            "tempcompass-multi-choice-0004": {"answer": "B", "meta": {"category": "direction"}},
        },
    ),
    _OF(
        split="yes_no",
        files={"questions/yes_no.json": "questions/yes_no.json"},
        records=2453,
        rows=2453,
        looks={
            "tempcompass-yes_no-0000": {"prompt": "Is the man dunking? Answer yes or no.", "answer": "yes"},
            "tempcompass-yes_no-0004": {"answer": "no", "meta": {"category": "action"}},
        },
    ),
    _OF(
        split="caption_matching",
        files={"questions/caption_matching.json": "questions/caption_matching.json"},
        records=1503,
        rows=1503,
        looks={
            "tempcompass-caption_matching-0000": {
                "prompt": "Which description is a more suitable match for the video?",
                "options": ["A. The man is dribbling a basketball.", "B. A man is dunking a basketball."],
                "answer": "B",
            },
            "tempcompass-caption_matching-0001": {"answer": "A"},
        },
    ),
)
