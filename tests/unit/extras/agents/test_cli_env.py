"""`vlmrl tools env`: list, check, play."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from vlmrl import cli
from vlmrl.extras.agents import ocr
from vlmrl.extras.agents.screens import screen_hash
from vlmrl.extras.agents.trajectory import trajectory_from_json, trajectory_to_json


@pytest.fixture
def run(monkeypatch, capsys):
    def _run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vlmrl", *(["list", "environments"] if arguments == ("list",) else ["tools", "env", *arguments])])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return _run


def test_list_says_what_there_is(run):
    code, out, _ = run("list")
    assert code == 0
    assert "toy_desk: Screens with buttons" in out
    assert "  crash_share: float = 0.0\n" in out
    assert "  ready\n" in out


def test_list_says_what_is_missing_for_a_part(run, monkeypatch):
    real, gone = importlib.util.find_spec, ("rapidocr", "onnxruntime", "browsergym")
    monkeypatch.setattr(ocr.importlib.util, "find_spec", lambda name, *more: None if name in gone else real(name, *more))
    _, out, _ = run("list")
    assert "  ready, but the tool read_text needs rapidocr and onnxruntime; pip install 'vlmrl[ocr]'\n" in out
    assert "  missing: the package browsergym-core, and its browser; install: pip install 'vlmrl[browsergym]'" in out


def test_check_ends_with_70_where_something_is_not_kept(run):
    code, out, err = run("check", "toy_desk", "crash_share=1", "fault=raise", "fault_attempts=9", "--episodes", "2", "--turns", "3")
    assert code == 70
    assert "WRONG episodes without a fault: 2 of 2 wrong" in out
    assert "environment 'toy_desk' does not keep" in err


def test_play_keeps_screens_and_trajectories(run, tmp_path: Path):
    out = tmp_path / "played"
    code, said, _ = run("play", "toy_desk", str(out), "crash_share=0.5", "--agent", "solve", "--episodes", "3")
    assert code == 0
    assert "3 episodes" in said
    assert "mean return 1\n" in said
    assert "outcomes: success 3" in said
    lines = (out / "trajectories.jsonl").read_text().splitlines()
    played = [trajectory_from_json(json.loads(line)) for line in lines]
    assert [json.dumps(trajectory_to_json(one), sort_keys=True) for one in played] == lines
    screens = {ref.path: ref.sha256 for one in played for turn in one.turns for ref in turn.seen.media}
    assert {path: screen_hash((out / "screens" / path).read_bytes()) for path in screens} == screens
    assert f"{out / 'replay.html'}: screen by screen" in said
    assert (out / "replay.html").read_text().count("data:image/png;base64,") == len(screens)
    assert run("play", "toy_desk", str(out))[0] == 64


def test_play_counts_shared_states_and_tokens(run, tmp_path: Path, tiny_files):
    model = str(tiny_files[0])
    arguments = ("--episodes", "1", "--attempts", "3", "--turns", "6", "--max-pixels", "3136")
    code, said, _ = run("play", "toy_desk", str(tmp_path / "p"), *arguments, "--model", model, "--history", "all", "--history", "1")
    assert code == 0
    assert "turns whose state another attempt met too: " in said
    counted = [int(line.split()[2]) for line in said.splitlines() if line.startswith("history ")]
    assert len(counted) == 2
    assert "longest prompt" in said
    lines = (tmp_path / "p" / "trajectories.jsonl").read_text().splitlines()
    played = [trajectory_from_json(json.loads(line)) for line in lines]
    assert [one.k for one in played] == [0, 1, 2]
    assert len({one.seed for one in played}) == 1
    assert len({one.turns[0].seen for one in played}) == 1, "all attempts begin at the same screen"
    assert run("play", "toy_desk", str(tmp_path / "q"), "--history", "all")[0] == 64
    assert run("play", "toy_desk", str(tmp_path / "q"), "--model", model, "--history", "some")[0] == 64


def test_a_model_acts_and_its_ids_are_kept(run, tmp_path: Path, tiny_files):
    shared = ("--episodes", "2", "--attempts", "2", "--turns", "2", "--max-new-tokens", "5", "--max-pixels", "3136", "--history", "1")
    model = ("--model", str(tiny_files[0]))
    outs = [tmp_path / "a", tmp_path / "b"]
    for out in outs:
        code, said, _ = run("act", "toy_desk", str(out), *shared, *model, "--answer-format", "answer_only")
        assert code == 0
        assert "4 episodes, 8 turns" in said
    records = [(out / "trajectories.jsonl").read_text() for out in outs]
    assert records[0] == records[1], "seeds decide everything"
    played = [trajectory_from_json(json.loads(line)) for line in records[0].splitlines()]
    assert all(1 <= len(turn.ids) == len(turn.logprobs) <= 5 for one in played for turn in one.turns)
    assert played[0].turns[0].ids != played[1].turns[0].ids, "attempts sample apart"
    assert run("act", "toy_desk", str(tmp_path / "d"), *shared, *model, "--answer-format", "answer_only", "--no-actions")[0] == 0
    bare = [trajectory_from_json(json.loads(line)) for line in (tmp_path / "d" / "trajectories.jsonl").read_text().splitlines()]
    first, second = ([[one.turns[n].ids for one in side] for side in (played, bare)] for n in (0, 1))
    assert first[0] == first[1]
    assert second[0] != second[1], "the prompt of the second turn tells the first action, or does not"
    assert run("act", "toy_desk", str(tmp_path / "c"), *shared)[0] == 64
    assert run("act", "toy_desk", str(tmp_path / "c"), *shared, *model, "--answer-format", "poem")[0] == 64


def test_a_fault_has_no_reward(run, tmp_path: Path):
    code, said, _ = run("play", "toy_desk", str(tmp_path / "p"), "crash_share=1", "fault=raise", "fault_attempts=9", "--episodes", "2")
    assert code == 0
    assert "mean return unknown" in said
    assert "faults, in none of these numbers: raised:RuntimeError 2" in said
    for line in (tmp_path / "p" / "trajectories.jsonl").read_text().splitlines():
        one = trajectory_from_json(json.loads(line))
        assert (one.total, one.outcome, one.fault) == (None, "fault", "raised:RuntimeError")


def test_arguments_are_written_as_in_a_recipe(run):
    shared = ("--plugin", "tests.support.odd_worlds", "--episodes", "1", "--turns", "1")
    assert run("check", "listed", "words=[left, right]", "share=1e-1", *shared)[0] == 0
    assert run("check", "listed", 'words=["left", "right"]', *shared)[0] == 0
    code, _, err = run("check", "listed", "words=left", *shared)
    assert code == 64
    assert "expected list[str]" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("check", "toy_dusk"), "did you mean 'toy_desk'"),
        (("check", "toy_desk", "crash_share"), "is written KEY=VALUE"),
        (("check", "toy_desk", "fault=[a"), "'fault=[a': not valid YAML"),
        (("check", "toy_desk", "--tasks", "nowhere.jsonl"), "nowhere.jsonl"),
    ],
)
def test_what_is_wrong_is_said(run, arguments, said):
    code, _, err = run(*arguments)
    assert code == 64
    assert said in err
