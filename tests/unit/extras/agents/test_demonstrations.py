"""agents.demonstrations: rows of played episodes give the very ids and pixels under which a stage samples, and an SFT stage learns them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from tests.support.tiny import Tiny
from tests.unit.extras.agents.test_cli_env import run  # noqa: F401 (a fixture)
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.tags import gold_text
from vlmrl.data.row import parse_row
from vlmrl.errors import ConfigError
from vlmrl.extras.agents.conversation import Conversation
from vlmrl.extras.agents.demonstrations import demonstrations, episode_rows
from vlmrl.extras.agents.find import default_tasks, open_pool
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.play import RECORDS, play_many
from vlmrl.extras.agents.pool import PoolSettings
from vlmrl.extras.agents.prompts import chains, rows
from vlmrl.extras.agents.trajectory import Trajectory
from vlmrl.run.tracking import read_metrics

SOKOBAN = ("examples.sokoban",)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[list[Trajectory]], Path]:
    out = tmp_path_factory.mktemp("played")
    with open_pool("sokoban", {"fewest": 4}, plugins=SOKOBAN, settings=PoolSettings(workers=1)) as pool:
        tasks = default_tasks("sokoban")
        return play_many(pool, tasks, out, episodes=2, attempts=1, agent="solve", turns=40, seed=1), out


@pytest.mark.parametrize("answer_format", ["answer_only", "think_or_not"])
@pytest.mark.parametrize("history", [History(), History(screens=1), History(screens=2, every=3), History(screens=1, actions=False)])
def test_a_row_is_the_prompt_of_the_stage(
    history: History, answer_format: str, played: tuple[list[list[Trajectory]], Path], tiny: Tiny
) -> None:
    (group, _), out = played
    encoder = dataclasses.replace(tiny.encoder, data_root=out)
    conversation = Conversation(dataclasses.replace(encoder, data_root=out / "screens"))
    for one in group:
        written = episode_rows(one, history, answer_format)
        samples = [parse_row(row, source="x", media_root=".") for row in written]
        texts = [gold_text(sample, answer_format, sample.thought) for sample in samples]
        sampled = tuple(dataclasses.replace(turn, action=text) for turn, text in zip(one.turns, texts, strict=True))
        made = rows(
            chains(
                dataclasses.replace(one, turns=sampled),
                history,
                conversation,
                lambda ref: tiny.store.get(ref, out / "screens").handle,
                answer_format=answer_format,
            )
        )
        assert len(made) == len(written) >= 4
        for (prompt, ids), sample, text in zip(made, samples, texts, strict=True):
            found = encoder.encode(sample, answer_format)
            assert found.ids == prompt.ids
            assert (found.spans, [handle.key for handle in found.media]) == (prompt.spans, [handle.key for handle in prompt.media])
            assert (*encoder.tokenize(text), conversation.end) == ids


def test_thoughts_go_to_their_place(played: tuple[list[list[Trajectory]], Path]) -> None:
    ((one,), _), _ = played
    turns = (dataclasses.replace(one.turns[0], action="<think>left of it</think><answer>up</answer>"), *one.turns[1:])
    first, second, *_ = episode_rows(dataclasses.replace(one, turns=turns), History(), "think")
    assert (first["thought"], first["answer"]) == ("left of it", "up")
    assert "thought" not in second
    assert second["history"][0]["answer"] == "<think>left of it</think><answer>up</answer>"


def test_only_successes_and_nothing_twice(played: tuple[list[list[Trajectory]], Path]) -> None:
    groups, _ = played
    lost = dataclasses.replace(groups[0][0], turns=groups[0][0].turns[:-1])
    made, same = demonstrations([*groups, groups[0], [lost]], History(screens=1), "answer_only")
    turns = [len(group[0].turns) for group in groups]
    assert len(made) + same == sum(turns) + turns[0]
    assert same >= turns[0]
    assert len({row["id"] for row in made}) == len(made)


def test_what_a_row_cannot_hold_is_refused(played: tuple[list[list[Trajectory]], Path]) -> None:
    ((one,), _), _ = played
    for text, said in ((" up ", "begins or ends with blanks"), ("", "is empty"), ("<|im_end|>", "control token")):
        seen = dataclasses.replace(one.turns[0].seen, text=text, media=())
        with pytest.raises(ConfigError, match=said):
            episode_rows(dataclasses.replace(one, turns=(dataclasses.replace(one.turns[0], seen=seen),)), History(), "think")


def test_actions_in_json_are_gold_answers(run: Any, tmp_path: Path) -> None:  # noqa: F811
    command = ("--agent", "solve", "--episodes", "2", "--rows", "--history", "1", "--answer-format", "answer_only")
    assert run("play", "toy_desk", str(tmp_path / "desk"), *command)[0] == 0
    written = [json.loads(line) for line in (tmp_path / "desk" / "rows.jsonl").read_text().splitlines()]
    assert all(row["answer_type"] == "action" and row["gt"]["action"] == json.loads(row["answer"]) for row in written)
    scores = [ANSWER_TYPES["action"].score(row["answer"], parse_row(row, source="x", media_root="."))[2]["step"] for row in written]
    assert scores == [1.0] * len(written)
    code, _, err = run("play", "lights", str(tmp_path / "lights"), "--plugin", "examples.my_world", *command)
    assert code == 64
    assert "is no JSON action, which its prompt asks for" in err
    assert not (tmp_path / "lights" / RECORDS).exists(), "it ended with the first attempt"


def test_the_command_writes_rows_that_are_read_and_taught(run: Any, tmp_path: Path, tiny_files: tuple[Path, Path]) -> None:  # noqa: F811
    out = tmp_path / "demonstrated"
    played = ("play", "sokoban", str(out), "--plugin", "examples.sokoban", "--agent", "solve", "--episodes", "3", "--rows")
    code, said, _ = run(*played, "--history", "2/3", "--answer-format", "think_or_not")
    assert code == 0
    written = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert f"{out / 'rows.jsonl'}: {len(written)} rows for fine-tuning with answer_format think_or_not" in said
    assert any("history" in row for row in written)
    config = runs.small_config(*tiny_files, tmp_path)
    config["data"]["root"] = str(out)
    stage = config["stages"][0] | {"source": {"path": "rows.jsonl"}, "answer_format": "think_or_not", "steps": 2}
    config |= {"stages": [stage], "eval": {}}
    assert runs.run(config) == 0, (tmp_path / "error.txt").read_text()
    losses = [line["loss"] for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "loss" in line]
    assert len(losses) == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("toy_desk", "--rows", "--history", "1", "--history", "all"), "one policy of history"),
        (("toy_desk", "--rows", "--answer-format", "free"), "none of a stage"),
        (("image_tools", "--rows"), "are rows of data"),
        (("toy_desk", "--history", "1"), "give one of them"),
    ],
)
def test_what_cannot_be_written_is_said(more: tuple[str, ...], said: str, run: Any, tmp_path: Path) -> None:  # noqa: F811
    name, *options = more
    code, _, err = run("play", name, str(tmp_path / "out"), *options)
    assert code == 64
    assert said in err
