"""Charades-STA: the annotations and Charades' own tables, as a repository of a grounding method carries them."""

from __future__ import annotations

from functools import partial

from tests.official.case import Case

_OF = partial(
    Case,
    repository="microsoft/2D-TAN",
    commit="2f7410f0de5e764ac7d84817f173732ef34e1545",
    date="2020-12-02",
    copied_from="jiyanggao/TALL and of Charades",
    how="unchanged",
    folders=("Charades_v1_480",),
)


def _files(split: str) -> dict[str, str]:
    return {f"data/Charades-STA/{name}": name for name in (f"charades_sta_{split}.txt", f"Charades_v1_{split}.csv")}


CASES = (
    _OF(
        split="train",
        files=_files("train"),
        records=12408,
        rows=12404,
        skipped={"empty span": 4},
        looks={
            "charades_sta-train-00001": {
                "video": "Charades_v1_480/AO8RW.mp4",
                "prompt": 'To pinpoint the event "a person is putting a book on a shelf" in the video, '
                'determine its precise time period: start and end in seconds with two decimals, for example "12.54 to 17.83".',
                "gt": {"time": [0.0, 6.9]},
                "meta": {"duration": 33.67},
            },
        },
    ),
    _OF(
        split="test",
        files=_files("test"),
        records=3720,
        rows=3720,
        looks={
            "charades_sta-test-00001": {"video": "Charades_v1_480/3MSZA.mp4", "gt": {"time": [24.3, 30.4]}},
            "charades_sta-test-03720": {"video": "Charades_v1_480/7JHW2.mp4", "gt": {"time": [3.1, 8.3]}},
        },
    ),
)
