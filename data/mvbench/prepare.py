"""MVBench: twenty kinds of questions about short clips, multiple choice. The clips have to be cut already."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, letter, main, official, read_json
from vlmrl.extras.importers.prepare.video_choice import choice_row, converted_video

FOLDERS = {
    "action_antonym": "ssv2_video_mp4",
    "action_count": "perception/videos",
    "action_localization": "sta/sta_video_segment",
    "action_prediction": "star/Charades_segment",
    "action_sequence": "star/Charades_segment",
    "character_order": "perception/videos",
    "counterfactual_inference": "clevrer/video_validation",
    "egocentric_navigation": "vlnqa",
    "episodic_reasoning": "tvqa/video_fps3_hq_segment",
    "fine_grained_action": "Moments_in_Time_Raw/videos",
    "fine_grained_pose": "nturgbd_convert",
    "moving_attribute": "clevrer/video_validation",
    "moving_count": "clevrer/video_validation",
    "moving_direction": "clevrer/video_validation",
    "object_existence": "clevrer/video_validation",
    "object_interaction": "star/Charades_segment",
    "object_shuffle": "perception/videos",
    "scene_transition": "scene_qa/video",
    "state_change": "perception/videos",
    "unexpected_action": "FunQA_test/test",
}
"""Task -> folder of its clips below `video/`, where every file holds just what the question is about."""


LEAST = 1
"""Candidates of a question: five of `counterfactual_inference` have a single one."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """Tasks in the order of their names; the category is the task.

    Raises:
        DataError: an answer is not once among its candidates, or a clip is about two parts of a video.
    """
    for task, folder in FOLDERS.items():
        path = official(root, f"json/{task}.json")
        parts: dict[str, tuple[object, object]] = {}
        for number, item in enumerate(read_json(path)):
            candidates, answer = [text.strip() for text in item["candidates"]], item["answer"].strip()
            if candidates.count(answer) != 1:
                raise DataError(f"{path}: record {number}: answer {item['answer']!r} is not once among its candidates")
            part = (item.get("start"), item.get("end"))
            if parts.setdefault(item["video"], part) != part:
                raise DataError(
                    f"{path}: record {number}: {item['video']} is about seconds {part}, but before about {parts[item['video']]}: "
                    "its clips are not cut. Get the branch `video` of the data set"
                )
            yield choice_row(
                id=f"mvbench-{task}-{number:03d}",
                task="mvbench",
                video=converted_video(root, f"video/{folder}/{item['video']}"),
                question=item["question"],
                options=candidates,
                answer=letter(candidates.index(answer)),
                meta={"split": split, "category": task},
                least=LEAST,
            )


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("test",))

if __name__ == "__main__":
    main(DATASET)
