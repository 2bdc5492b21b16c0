"""A run whose recipe words its prompts: fine-tuning with dropped thoughts, RL, evaluation and the exported model ask alike."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from tests.support import runs, tiny
from vlmrl.evals.ask.asking import asking_of
from vlmrl.evals.score.records import prompt_ids_hash, read_records

WORDS = "{{ question }} Reason in <thinking> </thinking>, then give {{ ask }} in <answer> </answer>."


def test_a_run_asks_in_the_words_of_its_recipe(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = runs.small_config(*tiny_files, tmp_path)
    config["data"]["prompt"] = WORDS
    assert runs.run(config) == 0
    path = runs.run_dir(config)
    held_out = tiny.load(*tiny_files, split="test")
    encoder = dataclasses.replace(held_out.encoder, prompt=WORDS)
    for name in ("sft", "rl"):
        answer_format = asking_of(path / "stages" / name).answer_format
        wanted = [prompt_ids_hash(encoder.encode(sample, answer_format)) for sample in held_out.samples[:6]]
        assert [record.prompt_ids_hash for record in read_records(path / "eval" / f"{name}.jsonl")] == wanted
        assert asking_of(path / "stages" / name).prompt == WORDS
    assert json.loads((path / "final" / "vlmrl.json").read_text())["asked"]["prompt"] == WORDS
