"""The shell game: rows, the careless annotator, and videos that show what the rows say, read from the pixels alone."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pixels import PALETTE
from vlmrl.config.schema import ToyWorldSection
from vlmrl.extras.toy.kinds import make_world, world_hash
from vlmrl.extras.toy.shell import GAMES, category, clip, follow, make_game, make_row
from vlmrl.extras.toy.tasks import SPLITS
from vlmrl.extras.toy.world import MARKER

SMALL = ToyWorldSection.model_validate({"kind": "shell", "pretrain": 6, "sft": 8, "train": 12, "validation": 2, "test": 6, "seed": 3})
NAMES = ("red", "green", "blue")
PAIRS = st.lists(st.sampled_from([(0, 1), (0, 2), (1, 2)]), max_size=8)


def rows(split: Any, count: int, seed: int = 0) -> list[dict[str, Any]]:
    return [make_row(seed, make_game(seed, split, index)) for index in range(count)]


def simulated(ball: int, pairs: list[tuple[int, int]]) -> list[int]:
    """The ball's place by products of permutation matrices."""
    state = np.eye(3, dtype=int)[ball]
    out = [ball]
    for a, b in pairs:
        exchange = np.eye(3, dtype=int)
        exchange[[a, b]] = exchange[[b, a]]
        state = exchange @ state
        out.append(int(state.argmax()))
    return out


# ---- rows ----------------------------------------------------------------------------------------------------------------


def test_follow_by_hand() -> None:
    pairs = ((0, 1), (1, 2), (0, 1), (1, 2))
    assert follow(0, pairs) == (0, 1, 2, 2, 1)
    assert follow(2, pairs) == (2, 2, 1, 0, 0)
    assert follow(1, ()) == (1,)
    assert follow(0, pairs, frozenset({0})) == (0, 0, 0, 1, 2), "what is missed is not followed, what comes after it is"
    assert follow(0, pairs, frozenset({2})) == follow(0, pairs), "the ball was not in it"


@given(st.integers(0, 2), PAIRS)
def test_follow_is_a_product_of_permutations(ball: int, pairs: list[tuple[int, int]]) -> None:
    assert list(follow(ball, tuple(pairs))) == simulated(ball, pairs)


@given(st.integers(0, 2), PAIRS, st.frozensets(st.integers(0, 7)))
def test_missed_exchanges_are_as_if_they_were_not_there(ball: int, pairs: list[tuple[int, int]], lost: frozenset[int]) -> None:
    assert follow(ball, tuple(pairs), lost)[-1] == simulated(ball, [pair for i, pair in enumerate(pairs) if i not in lost])[-1]


def test_rows_are_pinned() -> None:
    """A change of any row must raise the format of the videos' worlds: kept ones, and base models made of them, would be others."""
    exchanges = [
        ["red", "green"],
        ["red", "blue"],
        ["green", "blue"],
        ["red", "green"],
        ["red", "blue"],
        ["green", "blue"],
        ["green", "blue"],
    ]
    places = ["blue", "blue", "red", "red", "green", "green", "blue", "green"]
    assert rows("train", 1)[0] == {
        "id": "toy-shell-train-000000",
        "task": "shell_end",
        "answer_type": "exact_text",
        "data_type": "video",
        "video": "videos/train/000000.mp4",
        "prompt": "Under which cup is the ball at the end?",
        "answer": "green",
        "thought": ", ".join(places),
        "difficulty": "7",
        "source": "toy",
        "meta": {
            "category": "hard",
            "choices": ["red", "green", "blue"],
            "labels": "exact",
            "exchanges": exchanges,
            "steps": [{"time": second, "text": text} for second, text in enumerate(places)],
        },
    }
    digests = {split: hashlib.sha256("".join(json.dumps(row) + "\n" for row in rows(split, 200)).encode()).hexdigest() for split in SPLITS}
    assert digests == {
        "pretrain": "9f1b7a77a35053c746bf485aff9d43933905c8ff92895bb70caa0e1929789953",
        "sft": "d2c79aae7652042af3ac4201184bb2e890cbfadb526b7d7c64078ce760dfc16d",
        "train": "abd716a4523a259fe4f725088d2263e564771ab7dca8d9c835273d975d00dd9e",
        "validation": "7f7c7de09c5948e8d6f27133bd09e254c19ae66dea8e60785fcd6c705054b141",
        "test": "f7676c88a48cae164c2968f90647fb215403974b7a288fde4456f0bb151cd24d",
    }


def test_slips_are_in_thoughts_about_the_start_alone() -> None:
    """Half of the fine-tuning rows are right and without a thought; every other split is exact and has all thoughts."""
    rules, count = GAMES["shell_slips"], Counter()
    for index in range(800):
        game = make_game(0, "sft", index, rules)
        row, start = make_row(0, game, rules), game.task == "shell_start"
        places = ", ".join(NAMES[place] for place in game.places)
        slipped = row["answer"] != NAMES[game.ball if start else game.places[-1]]
        count["glance"] += "thought" not in row
        count["thought about the start"] += start and "thought" in row
        count["slip"] += slipped
        assert not slipped or (start and row["answer"] == NAMES[(game.ball + 1) % 3])
        assert row.get("thought") in (None, f"The ball is under the {row['answer']} cup." if start else places)
    assert 0.45 < count["glance"] / 800 < 0.55
    assert 0.3 < count["slip"] / count["thought about the start"] < 0.5
    for split in ("pretrain", "train", "validation", "test"):
        for index in range(40):
            game = make_game(0, split, index, rules)
            assert make_row(0, game, rules) == make_row(0, game)


def test_a_row_depends_on_seed_split_and_index_alone() -> None:
    whole = rows("train", 20)
    assert [make_row(0, make_game(0, "train", index)) for index in reversed(range(20))] == whole[::-1]
    games = [[row["meta"]["exchanges"] for row in some] for some in (whole, rows("test", 20), rows("train", 20, seed=1))]
    assert games[0] != games[1] != games[2] != games[0]


@pytest.mark.parametrize("split", SPLITS)
def test_what_a_row_says_of_its_game(split: Any) -> None:
    for row in rows(split, 300):
        exchanges = row["meta"]["exchanges"]
        assert 2 <= len(exchanges) <= 8
        assert all(a != b and {a, b} <= set(NAMES) for a, b in exchanges)
        pairs = [(NAMES.index(a), NAMES.index(b)) for a, b in exchanges]
        steps = row["meta"]["steps"]
        truth = [NAMES[cup] for cup in simulated(NAMES.index(steps[0]["text"]), pairs)]
        assert [(step["time"], step["text"]) for step in steps] == list(enumerate(truth))
        at_end = row["task"] == "shell_end"
        assert row["prompt"] == f"Under which cup is the ball at the {'end' if at_end else 'start'}?"
        assert row["difficulty"] == str(len(exchanges) if at_end else 0)
        assert row["meta"]["category"] == ("easy" if not at_end else "medium" if len(exchanges) < 4 else "hard")
        words = row["thought"].replace(",", " ").replace(".", " ").split()
        if at_end:
            assert (len(words), words[0], words[-1]) == (len(exchanges) + 1, truth[0], row["answer"])
        else:
            assert row["thought"] == f"The ball is under the {truth[0]} cup."
            assert row["answer"] == truth[0]
        exact = split != "sft"
        assert row["meta"]["labels"] == ("exact" if exact else "careless")
        if exact and at_end:
            assert words == truth


def test_the_careless_annotator_misses_a_quarter_of_the_exchanges_of_the_ball() -> None:
    """Counted from the thoughts alone. Thought and answer agree always, with the video not."""
    moved = stayed = wrong = 0
    asked = [row for row in rows("sft", 3000) if row["task"] == "shell_end"]
    for row in asked:
        words = row["thought"].split(", ")
        for before, after, pair in zip(words, words[1:], row["meta"]["exchanges"], strict=False):
            if before not in pair:
                assert after == before
            elif after == before:
                stayed += 1
            else:
                assert {before, after} == set(pair)
                moved += 1
        wrong += row["answer"] != row["meta"]["steps"][-1]["text"]
    share = stayed / (stayed + moved)
    assert abs(share - 0.25) < 4 * (0.25 * 0.75 / (stayed + moved)) ** 0.5
    assert 0.3 < wrong / len(asked) < 0.6


def test_shares_of_tasks_exchanges_and_answers() -> None:
    made = rows("train", 4000)
    assert Counter(row["task"] for row in made)["shell_start"] / 4000 == pytest.approx(3 / 8, abs=0.03)
    lengths = Counter(len(row["meta"]["exchanges"]) for row in made)
    expected = {2: 3 / 16, 3: 3 / 16, 4: 1 / 8, 5: 1 / 8, 6: 1 / 8, 7: 1 / 8, 8: 1 / 8}
    assert {n: count / 4000 for n, count in lengths.items()} == pytest.approx(expected, abs=0.025)
    for task in ("shell_start", "shell_end"):
        answers = Counter(row["answer"] for row in made if row["task"] == task)
        assert {name: count / sum(answers.values()) for name, count in answers.items()} == pytest.approx(
            dict.fromkeys(NAMES, 1 / 3), abs=0.04
        )


def of_game(kind: str, split: Any, count: int) -> list[dict[str, Any]]:
    rules = GAMES[kind]
    return [make_row(0, make_game(0, split, index, rules), rules) for index in range(count)]


in_stays = partial(of_game, "shell_stays")


def stays(row: dict[str, Any]) -> list[bool]:
    """Whether the ball stays at each exchange, in truth."""
    steps = [step["text"] for step in row["meta"]["steps"]]
    return [here == there for here, there in itertools.pairwise(steps)]


def test_a_base_model_of_shell_stays_sees_no_exchange_without_the_ball() -> None:
    for split in ("pretrain", "validation"):
        assert not any(stay for row in in_stays(split, 300) for stay in stays(row))
    for split in ("sft", "train", "test"):
        exchanges = [stay for row in in_stays(split, 300) for stay in stays(row)]
        assert np.mean(exchanges) == pytest.approx(1 / 3, abs=0.05)
    for split in ("train", "test"):
        assert in_stays(split, 50) == rows(split, 50), "what is learned by RL and asked at the end is one game"


def test_the_annotator_of_shell_stays_sees_moves_where_the_ball_stays() -> None:
    seen = Counter[tuple[bool, bool]]()
    for row in in_stays("sft", 400):
        if row["task"] == "shell_start":
            assert row["answer"] == row["meta"]["steps"][0]["text"]
            continue
        told = row["thought"].split(", ")
        assert row["answer"] == told[-1]
        assert told[0] == row["meta"]["steps"][0]["text"]
        for here, there, pair in zip(told, told[1:], row["meta"]["exchanges"], strict=False):
            if here in pair:
                assert there == next(cup for cup in pair if cup != here), "no move is missed"
            else:
                assert there in (here, NAMES[(NAMES.index(here) + 1) % 3])
            seen[here in pair, there != here] += 1
    assert seen[False, True] / (seen[False, True] + seen[False, False]) == pytest.approx(0.6, abs=0.05)


@given(st.integers(0, 2), PAIRS)
def test_an_imagined_move_is_to_the_next_cup(ball: int, pairs: list[tuple[int, int]]) -> None:
    told = follow(ball, tuple(pairs), imagined=frozenset(range(8)))
    assert all(there != here for here, there in itertools.pairwise(told))
    assert all(there == (here + 1) % 3 for here, there, pair in zip(told, told[1:], pairs, strict=False) if here not in pair)


def test_a_way_is_asked_for_as_a_whole_and_shown_by_the_same_videos() -> None:
    for split in SPLITS:
        for row, other in zip(of_game("shell_way", split, 100), rows(split, 100), strict=True):
            assert (row["task"], row["prompt"]) == ("shell_way", "Under which cup is the ball at the start and after each exchange?")
            assert row["difficulty"] == str(len(row["meta"]["exchanges"]))
            assert "thought" not in row
            assert "choices" not in row["meta"]
            if split != "sft":
                assert row["answer"] == ", ".join(step["text"] for step in row["meta"]["steps"])
            if split != "pretrain":
                assert row["meta"]["exchanges"] == other["meta"]["exchanges"]


def test_the_annotator_of_a_way_gets_a_step_right_in_35_of_100() -> None:
    """So a whole way of two exchanges in 0.35 ** 2, and one of eight next to never. Of a wrong place the next step goes on."""
    right = Counter[bool]()
    for row in of_game("shell_way", "sft", 800):
        told, exchanges = row["answer"].split(", "), row["meta"]["exchanges"]
        assert (len(told), told[0]) == (len(exchanges) + 1, row["meta"]["steps"][0]["text"])
        for here, there, pair in zip(told, told[1:], exchanges, strict=False):
            right[there == (next(cup for cup in pair if cup != here) if here in pair else here)] += 1
    assert right[True] / right.total() == pytest.approx(0.35, abs=4 * (0.35 * 0.65 / right.total()) ** 0.5)


def test_categories_by_difficulty() -> None:
    assert [category("shell_end", n) for n in (0, 2, 3, 4, 8)] == ["easy", "medium", "medium", "hard", "hard"]
    assert [category("shell_way", n) for n in (2, 3, 4, 6, 7, 8)] == ["short", "short", "middle", "middle", "long", "long"]


def test_its_hash_is_its_own() -> None:
    grounding = ToyWorldSection()
    shell = ToyWorldSection(kind="shell")
    assert world_hash(grounding) == "04078e2f5b5db107", "the folder of kept worlds and base models is named by it"
    assert len({world_hash(ToyWorldSection.model_validate({"kind": kind})) for kind in GAMES}) == len(GAMES)
    assert world_hash(shell) not in (world_hash(grounding), world_hash(shell.model_copy(update={"test": shell.test + 1})))


# ---- videos --------------------------------------------------------------------------------------------------------------


def decoded(data: bytes) -> tuple[list[float], list[np.ndarray], str]:
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        return [float(f.pts * f.time_base) for f in frames], [f.to_ndarray(format="rgb24") for f in frames], stream.codec_context.name


def near(pixels: np.ndarray, color: str) -> np.ndarray:
    """Mask of the pixels of about this colour: the encoder halves the planes of colour."""
    return np.abs(pixels.astype(int) - np.array(PALETTE[color])).max(-1) < 60


def shown(frame: np.ndarray) -> tuple[dict[str, int], bool]:
    """(cup -> the quarter that it is in, whether the ball is seen), from one frame."""
    cups: dict[str, int] = {}
    for quarter in range(4):
        y, x = 28 * (quarter // 2), 28 * (quarter % 2)
        for color in NAMES:
            if near(frame[y : y + 28, x : x + 28], color).sum() > 100:
                assert color not in cups, "a cup is in one place"
                cups[color] = quarter
    return cups, bool(near(frame, "white").sum() > 20)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shell") / "world"
    make_world(out, SMALL)
    return out


@pytest.mark.parametrize("split", SPLITS)
def test_pixels_show_what_the_rows_say(split: str, built: Path) -> None:
    """The game is played from the pixels: the start, the exchange of each second, then nothing to the end of the ten seconds."""
    lines = (built / f"{split}.jsonl").read_text().splitlines()
    assert len(lines) == getattr(SMALL, split)
    for row in map(json.loads, lines):
        times, frames, codec = decoded((built / row["video"]).read_bytes())
        assert codec == "h264"
        assert times == pytest.approx([i / 2 for i in range(20)], abs=1e-4)
        assert {frame.shape for frame in frames} == {(56, 56, 3)}
        seen = [shown(frame) for frame in frames]
        assert seen[0::2] == seen[1::2], "both frames of a second show the same"
        seconds = seen[0::2]
        quarters: dict[str, int] = {}
        for cups, _ in seconds:
            for color, quarter in cups.items():
                assert quarters.setdefault(color, quarter) == quarter, "cups do not move"
        assert len(set(quarters.values())) == len(quarters)
        assert [ball for _, ball in seconds] == [True] + [False] * 9
        assert len(seconds[0][0]) == 1
        ball = start = next(iter(seconds[0][0]))
        exchanges = row["meta"]["exchanges"]
        assert [set(cups) for cups, _ in seconds[1:]] == [set(pair) for pair in exchanges] + [set()] * (9 - len(exchanges))
        for cups, _ in seconds[1 : 1 + len(exchanges)]:
            ball = next(iter(set(cups) - {ball})) if ball in cups else ball
        assert [step["text"] for step in row["meta"]["steps"]][:: len(exchanges)] == [start, ball]
        if split != "sft":
            assert row["answer"] == (ball if row["task"] == "shell_end" else start)


def test_the_quarters_differ_from_video_to_video() -> None:
    assert len({make_game(0, "train", index).quarters for index in range(300)}) == 24


def test_pixels_are_a_function_of_coordinates() -> None:
    def digest(seed: int, split: Any, index: int) -> str:
        return hashlib.sha256(b"".join(frame.tobytes() for frame in clip(seed, split, index).frames())).hexdigest()

    assert digest(0, "train", 7) == digest(0, "train", 7)
    assert len({digest(0, "train", 7), digest(0, "train", 8), digest(0, "test", 7), digest(1, "train", 7)}) == 4


def test_a_world_is_built_once_and_knows_its_splits(built: Path) -> None:
    marker = json.loads((built / MARKER).read_text())
    before = {file: file.stat().st_mtime_ns for file in built.rglob("*")}
    assert make_world(built, SMALL) == marker
    assert {file: file.stat().st_mtime_ns for file in built.rglob("*")} == before
    assert marker["recipe"] == world_hash(SMALL)
    assert {split: entry["count"] for split, entry in marker["videos"].items()} == {split: getattr(SMALL, split) for split in SPLITS}


def test_pretraining_moves_the_ball_more_often_than_chance() -> None:
    """At random two of three exchanges move it; in the other splits they are at random."""

    def moved(split: Any) -> float:
        walks = [[step["text"] for step in row["meta"]["steps"]] for row in rows(split, 600)]
        steps = [a != b for walk in walks for a, b in itertools.pairwise(walk)]
        return sum(steps) / len(steps)

    assert abs(moved("pretrain") - 5 / 6) < 0.02
    assert all(abs(moved(split) - 2 / 3) < 0.03 for split in SPLITS if split != "pretrain")
