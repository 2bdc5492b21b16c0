"""The report of `vlmrl check` beside a model: what loading and `vlmrl check` make of it."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tests.support import tiny
from tests.support.reports import HERE, written
from vlmrl import doctor
from vlmrl.cli import app
from vlmrl.errors import ConfigError
from vlmrl.extras.families import verdict
from vlmrl.extras.families.conform.run import PROMISES
from vlmrl.extras.families.verdict import ConformWarning
from vlmrl.families.registry import family_of
from vlmrl.families.report import report_of
from vlmrl.policy.load import load_policy


def test_what_needs_are_are_promises() -> None:
    assert set(verdict.NEEDED) <= set(PROMISES)


def test_without_a_report_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert report_of(str(tmp_path)) is None


def test_a_report_of_kept_promises_says_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verdict.read(str(written(tmp_path))).check()


def test_a_promise_that_is_needed_and_not_kept_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "a model", red=("P5", "P9"))
    with pytest.raises(ConfigError) as caught:
        verdict.read(str(folder)).check()
    assert "does not keep P5 (positions are the core's)" in str(caught.value)
    assert "P9" not in str(caught.value), "decoding concerns those who decode with it"
    assert f"run `vlmrl check '{folder}'` again" in str(caught.value)


@pytest.mark.parametrize("red", [(), ("P5",)])
def test_other_versions_are_a_warning(tmp_path: Path, red: tuple[str, ...]) -> None:
    folder = written(tmp_path / "m", red=red, versions={"transformers": "4.0.0", "torch": HERE["torch"]})
    with pytest.warns(ConformWarning, match=r"is of transformers 4\.0\.0, here ") as told:
        verdict.read(str(folder)).check()
    (line,) = [str(one.message) for one in told if one.category is ConformWarning]  # others may come from what is collected meanwhile
    assert ("these are not kept: P5" in line) == bool(red)


@pytest.mark.parametrize("text", ["{", "[]", '{"promises": {}}', '{"promises": [1], "facts": {}}'])
def test_a_damaged_report_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "conform.json").write_text(text)
    with pytest.raises(ConfigError, match="no report of `vlmrl check`"):
        report_of(str(tmp_path))


def test_loading_looks_at_the_report(tmp_path: Path) -> None:
    model, world = tiny.make_files(tmp_path, sft=1, train=1, test=1)
    bundle = tiny.load(model, world).bundle
    written(model, red=("P10",))
    with pytest.raises(ConfigError, match=r"does not keep P10 \(the head gives the model's logits\)"):
        load_policy(str(model), bundle, device="cpu")
    written(model, red=("P8",))
    assert load_policy(str(model), bundle, device="cpu").model is not None


def test_an_unknown_type_is_refused_with_the_command() -> None:
    with pytest.raises(ConfigError, match=r"vlmrl check /models/new "):
        family_of("something_new", "/models/new")


def test_doctor_tells_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "internvl"}')
    [size, report] = doctor.examine_model(str(tmp_path))
    assert (size.found, report.status) == ("internvl, 0.0 million numbers, 0.00 GiB in shards", "absent")
    assert report.advice == f"vlmrl check {tmp_path} tries it"
    written(tmp_path)
    report = doctor.examine_model(str(tmp_path))[1]
    assert (report.status, report.advice) == ("ok", "")
    assert "keeps P1, P2, P3" in report.found
    assert f"transformers {HERE['transformers']}" in report.found
    written(tmp_path, red=("P1",))
    report = doctor.examine_model(str(tmp_path))[1]
    assert (report.status, report.advice) == ("problem", "not kept: P1 (ids are the chat template's)")
    written(tmp_path, red=("P1",), versions={"transformers": "4.0.0"})
    report = doctor.examine_model(str(tmp_path))[1]
    assert report.status == "absent"
    assert "of other versions: transformers 4.0.0, here" in report.advice


def test_the_command_doctor_takes_a_folder(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    done = CliRunner().invoke(app, ["check", str(tmp_path), "--machine"])
    assert done.exit_code != 0
    assert "no config.json there" in str(done.exception)
