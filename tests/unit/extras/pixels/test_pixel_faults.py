"""The twelve faults: a trainer that has one built in comes out as `in silence`, one without does not, and vlmrl has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import vlmrl
from tests.support.naive_pixels import Naive
from vlmrl.errors import ConfigError
from vlmrl.extras.pixels import command
from vlmrl.extras.pixels.faults import FAULTS
from vlmrl.extras.pixels.feed import Feed
from vlmrl.extras.pixels.job import Job, Row, Trained, Trainer, as_json, from_json
from vlmrl.extras.pixels.judge import CannotTell, Found, Judge
from vlmrl.extras.pixels.own import Vlmrl

KEYS = [fault.key for fault in FAULTS]
OF_KEY = {fault.key: fault for fault in FAULTS}
REFUSED = {"expanded_twice", "dropped", "cut", "one_rank"}
"""What cannot be trained right."""
OF_TWO_PROCESSES = "one_rank"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(Feed(tmp_path_factory.mktemp("pixels")))


@pytest.fixture(scope="module")
def ask(judge: Judge) -> Callable[[Trainer, str], Found]:
    return lambda trainer, key: judge.ask(trainer, OF_KEY[key], set())


@pytest.mark.parametrize("key", KEYS)
def test_a_trainer_with_the_fault_trains_in_silence(key: str, ask: Callable[[Trainer, str], Found]) -> None:
    found = ask(Naive(key), key)
    assert found.verdict == "in silence", found


@pytest.mark.parametrize("key", KEYS)
def test_a_trainer_without_it_does_not(key: str, ask: Callable[[Trainer, str], Found]) -> None:
    found = ask(Naive(), key)
    assert found.verdict == ("noticed" if key in REFUSED else "prevented"), found


@pytest.mark.parametrize("key", [key for key in KEYS if key != OF_TWO_PROCESSES])
def test_vlmrl_has_none(key: str, ask: Callable[[Trainer, str], Found]) -> None:
    found = ask(Vlmrl(), key)
    assert found.verdict == ("noticed" if key in REFUSED else "prevented"), found


@pytest.mark.slow
def test_vlmrl_notices_that_the_images_of_one_rank_are_missing(ask: Callable[[Trainer, str], Found]) -> None:
    found = ask(Vlmrl(), OF_TWO_PROCESSES)
    assert found.verdict == "noticed", found


def test_a_warning_that_names_it_counts_as_noticed_and_another_does_not(ask: Callable[[Trainer, str], Found]) -> None:
    assert ask(Naive(warns="no pixels for 6 placeholders"), "dropped").verdict == "noticed"
    assert ask(Naive(warns="the moon is full"), "dropped").verdict == "in silence"


def test_what_a_trainer_says_without_a_fault_does_not_count(judge: Judge) -> None:
    said = "no pixels for 6 placeholders"
    assert judge.ask(Naive(warns=said), OF_KEY["dropped"], {said}).verdict == "in silence"


def test_an_error_that_does_not_name_it_is_told_apart(ask: Callable[[Trainer, str], Found]) -> None:
    class Falls(Naive):
        def train(self, job: Job) -> Trained:
            raise IndexError(self.fault)

    assert ask(Falls("7"), "dropped") == Found("dropped", "stopped", "IndexError: 7")
    assert ask(Falls("/tmp/pixels/image.json: 7"), "dropped").verdict == "stopped", "the name of a file is no message"


def test_a_row_that_is_left_out_without_a_word_is_silence(ask: Callable[[Trainer, str], Found]) -> None:
    class LeavesOut(Naive):
        def train(self, job: Job) -> Trained:
            return Trained(answers=super().train(job).answers[: job.group])

    found = ask(LeavesOut(), "order")
    assert (found.verdict, found.how) == ("in silence", "answers of 1 of 2 rows never came to the loss")


def test_nothing_is_said_of_a_trainer_that_the_measure_does_not_fit(judge: Judge) -> None:
    with pytest.raises(CannotTell, match="trains otherwise than the reference"):
        list(judge.verdicts(Naive(blind=True), ["exif"]))
    assert [one.verdict for one in judge.verdicts(Naive("order"), ["exif"])] == ["prevented"]


def test_a_fault_that_does_not_apply_is_not_asked(judge: Judge) -> None:
    class Lacks(Naive):
        def lacks(self, fault: str) -> str | None:
            return "reads no video" if OF_KEY[fault].kind == "video" else None

        def train(self, job: Job) -> Trained:
            raise AssertionError

    found = list(judge.verdicts(Lacks(), ["frame_times", "variable_rate"]))
    assert found == [Found(key, "does not apply", "reads no video") for key in ("frame_times", "variable_rate")]


def test_a_job_and_its_result_survive_the_way_to_a_rank(judge: Judge, tmp_path: Path) -> None:
    from dataclasses import asdict

    from vlmrl.extras.pixels.job import job_of

    row = Row(word="amber", text="Say it.", media=("a.png", "b.png"))
    job = Job(model=judge.feed.model(), folder=str(tmp_path), rows=(row,), lost=(1,), ranks=2)
    assert job_of(json.loads(json.dumps(asdict(job)))) == job
    trained = Trained(said=["a word"], error="ValueError: pixels")
    assert from_json(json.loads(json.dumps(as_json(trained)))) == trained


def test_the_command_says_a_line_for_each_fault() -> None:
    done = vlmrl("tools", "pixels", "exif", "alpha")
    assert done.returncode == 0, done.stderr[-2000:]
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["exif", "prevented"], ["alpha", "prevented"]]


def test_a_key_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no pixel fault is called 'exfi' \(known: sampled,"):
        command.pixels(["exfi"])
