"""QVHighlights: the annotation files of the authors' repository."""

from __future__ import annotations

from functools import partial

from tests.official.case import Case

_COMMIT = "b7e553ac3b0c898ee6b85e03ee507c064eab89ca"
_OF = partial(Case, repository="jayleicn/moment_detr", commit=_COMMIT, date="2026-03-08", how="unchanged")
_TRAIN = partial(_OF, split="train", records=7218, files={"data/highlight_train_release.jsonl": "highlight_train_release.jsonl"})
_VAL = partial(_OF, split="val", records=1550, files={"data/highlight_val_release.jsonl": "highlight_val_release.jsonl"})

CASES = (
    _TRAIN(
        options={"task": "moment"},
        rows=4855,
        skipped={"not one window": 2363},
        looks={
            "qvhighlights-train-moment-10016": {
                "video": "videos/j7rJstUseKg_210.0_360.0.mp4",
                "prompt": 'To pinpoint the event "Man in baseball cap eats before doing his interview" in the video, '
                'determine its precise time period: start and end in seconds with two decimals, for example "12.54 to 17.83".',
                "gt": {"time": [96.0, 114.0]},
                "meta": {"duration": 150, "windows": [[96, 114]]},
            },
            "qvhighlights-train-moment-6812": {"gt": {"time": [64.0, 92.0]}},
        },
    ),
    _TRAIN(
        options={"task": "highlight"},
        rows=7218,
        looks={
            "qvhighlights-train-highlight-10016": {
                "gt": {
                    "highlights": [
                        [97, 2.67],
                        [99, 3],
                        [101, 2],
                        [103, 1.67],
                        [105, 2.67],
                        [107, 2.33],
                        [109, 2],
                        [111, 1.67],
                        [113, 2.33],
                    ],
                    "saliency": {
                        "clips": [48, 49, 50, 51, 52, 53, 54, 55, 56],
                        "scores": [[2, 3, 3], [4, 3, 2], [2, 3, 1], [2, 3, 0], [2, 3, 3], [2, 3, 2], [2, 3, 1], [2, 3, 0], [1, 3, 3]],
                    },
                }
            }
        },
    ),
    _VAL(
        options={"task": "moment"},
        rows=1020,
        skipped={"not one window": 530},
        looks={"qvhighlights-val-moment-8420": {"video": "videos/_e8_yuedv6w_660.0_810.0.mp4", "gt": {"time": [0.0, 28.0]}}},
    ),
    _VAL(
        options={"task": "moments"},
        rows=1550,
        looks={
            "qvhighlights-val-moments-2579": {"gt": {"time": [82.0, 150.0], "windows": [[82.0, 150.0]]}},
            "qvhighlights-val-moments-5071": {"gt": {"time": [118.0, 136.0]}},
        },
    ),
    _VAL(options={"task": "highlight"}, rows=1550, looks={"qvhighlights-val-highlight-8420": {"gt": {"saliency": {"duration": 144}}}}),
)
