"""VSI-Bench: the official questions, as Video-R1's evaluation keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.official.case import Case
from tests.support.poured import read, write_parquet


def _record(item: dict[str, Any]) -> dict[str, Any]:
    dataset, scene = item["path"].removeprefix("./Evaluation/VSIBench/").removesuffix(".mp4").split("/")
    return {
        "id": item["problem_id"],
        "dataset": dataset,
        "scene_name": scene,
        "question_type": item["original_question_type"],
        "question": item["problem"],
        "ground_truth": item["solution"].removeprefix("<answer>").removesuffix("</answer>"),
        "options": item["options"],
    }


def _pour(root: Path) -> None:
    write_parquet(root / "test-00000-of-00001.parquet", map(_record, read(root / "eval_vsibench.json")))


CASES = (
    Case(
        repository="qizhongtan/Video-ToC",
        commit="bbf9451a05a09a2b061072503a83b4842efb802a",
        date="2026-04-23",
        files={"Evaluation/eval_vsibench.json": "eval_vsibench.json"},
        how="poured",
        pour=_pour,
        copied_from="VSI-Bench, by way of Video-R1's evaluation set",
        split="test",
        records=5130,
        rows=5130,
        looks={
            "vsi_bench-0": {
                "video": "arkitscenes/41069025.mp4",
                "answer_type": "regression",
                "answer": "4",
                "meta": {"category": "object_counting", "question_type": "object_counting"},
            },
            "vsi_bench-4620": {"video": "scannet/scene0307_02.mp4", "gt": {"number": 3.0}, "meta": {"category": "object_abs_distance"}},
            "vsi_bench-4020": {
                "answer_type": "choice",
                "answer": "C",
                "options": [
                    "A. table, backpack, trash bin, lamp",
                    "B. backpack, lamp, trash bin, table",
                    "C. lamp, table, trash bin, backpack",
                    "D. backpack, table, trash bin, lamp",
                ],
            },
            "vsi_bench-5155": {"video": "arkitscenes/42446529.mp4", "answer": "A", "meta": {"category": "route_planning"}},
        },
    ),
)
