"""MVBench: the official questions of all twenty tasks in one list, as Video-R1's evaluation keeps them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data.mvbench.prepare import FOLDERS
from tests.official.case import Case
from tests.support.poured import read, write_json
from tests.support.standins import make_medium

EACH = 200
"""Questions of each task; the list has the tasks in the order of their names."""


def _pour(root: Path) -> None:
    given = read(root / "eval_mvbench.json")
    for i, task in enumerate(sorted(FOLDERS)):
        part = given[i * EACH : (i + 1) * EACH]
        write_json(root / f"json/{task}.json", list(map(_record, part)))
        _convert(root / "video" / FOLDERS[task], [item["video"] for item in part if not item["video"].endswith(".mp4")])


def _convert(folder: Path, names: list[str]) -> None:
    """Stand-ins for the clips that the branch has as `.mp4`, while the list says `.webm` or `.avi`."""
    clips = [folder / f"{name.partition('.')[0]}.mp4" for name in sorted(set(names)) if "." in name]
    if clips:
        make_medium(folder, clips[0].name, "video", {"duration": 2})
        for clip in clips[1:]:
            os.link(clips[0], clip)


def _record(item: Mapping[str, Any]) -> dict[str, Any]:
    """As the branch `video` has it, where a clip that was cut has a name of its own (here: of its seconds)."""
    record = {key: item[key] for key in ("video", "question", "answer", "start", "end") if key in item}
    if "start" in item:
        record["video"] = f"{item['video'].removesuffix('.mp4')}_{item['start']}_{item['end']}.mp4"
    return record | {"candidates": [option.partition(". ")[2] for option in item["options"]]}


CASES = (
    Case(
        repository="qizhongtan/Video-ToC",
        commit="bbf9451a05a09a2b061072503a83b4842efb802a",
        date="2026-04-23",
        files={"Evaluation/eval_mvbench.json": "eval_mvbench.json"},
        how="poured",
        pour=_pour,
        copied_from="MVBench, by way of Video-R1's evaluation set",
        split="test",
        records=4000,
        rows=4000,
        looks={
            "mvbench-action_antonym-000": {
                "options": ["A. Not sure", "B. Scattering something down", "C. Piling something up"],
                "answer": "C",
                "video": "video/ssv2_video_mp4/166583.mp4",
            },
            "mvbench-action_prediction-000": {"video": "video/star/Charades_segment/AJTDO_0.0_11.375.mp4"},
            "mvbench-counterfactual_inference-081": {"options": ["A. The cube collides with the gray cylinder"], "answer": "A"},
            "mvbench-unexpected_action-199": {"answer": "D", "video": "video/FunQA_test/test/test_magic/M_Z_280_6258_6451.mp4"},
        },
    ),
)
