"""ActivityNet Captions: the three annotation files, under other names, as a repository of a grounding method carries them."""

from __future__ import annotations

from functools import partial

from tests.official.case import Case

_OF = partial(
    Case,
    repository="microsoft/2D-TAN",
    commit="2f7410f0de5e764ac7d84817f173732ef34e1545",
    date="2020-12-02",
    copied_from="Stanford's captions.zip",
    how="renamed",
)

CASES = (
    _OF(
        split="train",
        files={"data/ActivityNet/train.json": "train.json"},
        records=37421,
        rows=37417,
        skipped={"empty span": 4},
        looks={
            "activitynet_captions-train-v_QOlSCBRmfWY-1": {
                "video": "videos/v_QOlSCBRmfWY.mp4",
                "prompt": 'To pinpoint the event "The girl dances around the room while the camera captures her movements" in the video, '
                'determine its precise time period: start and end in seconds with two decimals, for example "12.54 to 17.83".',
                "gt": {"time": [17.37, 60.81]},
                "meta": {"duration": 82.73},
            },
            "activitynet_captions-train-v_nlkmPF8TBdQ-4": {"gt": {"time": [110.85, 171.08]}},
        },
    ),
    _OF(
        split="val_1",
        files={"data/ActivityNet/val.json": "val_1.json"},
        records=17505,
        rows=17505,
        looks={
            "activitynet_captions-val_1-v_uqiMw7tQ1Cc-0": {"gt": {"time": [0.28, 55.15]}, "meta": {"duration": 55.15}},
            "activitynet_captions-val_1-v_5nOc03oiFvk-2": {"gt": {"time": [118.46, 213.44]}},
        },
    ),
    _OF(
        split="val_2",
        files={"data/ActivityNet/test.json": "val_2.json"},
        records=17031,
        rows=17031,
        looks={
            "activitynet_captions-val_2-v_uqiMw7tQ1Cc-0": {"gt": {"time": [0.0, 4.14]}},
            "activitynet_captions-val_2-v_xabaKyhx7cg-2": {"gt": {"time": [78.39, 121.53]}, "meta": {"duration": 121.53}},
        },
    ),
)
