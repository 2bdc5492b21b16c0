"""What `vlmrl check` finds on this machine, and on machines that lack something."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from pathlib import Path

import pytest
import torch

from vlmrl import doctor


def by_item(findings: list[doctor.Finding]) -> dict[str, doctor.Finding]:
    return {f.item: f for f in findings}


def test_this_machine():
    found = by_item(doctor.examine())
    assert found["cpu"].status == "ok"
    assert ("cuda:0" in found) == torch.cuda.is_available()
    assert {"working directory", "model cache", "decord", "av", *doctor.OPTIONAL} <= set(found)
    assert [f.item for f in doctor.examine()].count("decord") == 1


def test_versions_out_of_range_and_missing_are_problems(monkeypatch):
    monkeypatch.setattr(
        importlib.metadata, "requires", lambda name: ["torch>=2.11", "numpy<1", "no-such-thing>=1", 'pytest; extra == "dev"']
    )
    found = by_item(doctor._required())
    assert found["torch"].status == "ok"
    assert (found["numpy"].status, found["numpy"].advice) == ("problem", "numpy<1 is needed")
    assert found["no-such-thing"].status == "problem"
    assert "pytest" not in found


def test_a_newer_torch_than_was_tested_is_said_and_no_problem(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["torch>=2.11,<2.12", "transformers>=99,<100", "packaging<1"])
    found = by_item(doctor._required())
    assert (found["torch"].status, found["torch"].advice) == ("absent", doctor.NEWER)
    assert (found["transformers"].status, found["transformers"].advice) == ("problem", "transformers<100,>=99 is needed")
    assert found["packaging"].status == "problem"


def test_not_installed(monkeypatch):
    def missing(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert [(f.status, f.advice) for f in doctor._required()] == [("problem", "bash scripts/setup.sh")]


@pytest.mark.parametrize(
    ("broken", "statuses"), [({"decord"}, ["ok", "absent"]), ({"decord", "av"}, ["problem", "absent"]), (set(), ["ok", "ok"])]
)
def test_pyav_is_needed_and_decord_is_not(monkeypatch, broken, statuses):
    real = importlib.import_module

    def load(name: str):
        if name in broken:
            raise OSError("libx.so: cannot open shared object file")
        return real(name)

    monkeypatch.setattr(importlib, "import_module", load)
    assert [f.status for f in doctor._decoders()] == statuses


def test_extras_that_doctor_names_are_declared():
    """And what is not in reach of pip's resolver says how to get it."""
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    named = {extra for advice in doctor.OPTIONAL.values() for extra in re.findall(r"vlmrl\[(\w+)\]", advice)}
    wanted = {
        "bitsandbytes",
        "browsergym",
        "decord",
        "deepspeed",
        "flash",
        "gymnasium",
        "liger",
        "lmms",
        "lora",
        "miniwob",
        "ocr",
        "openenv",
        "serve",
        "smolvlm",
    }
    assert named == wanted | {"torchcodec", "trackers", "view", "vllm", "xlsx"}
    assert named == set(re.findall(r"^(\w+) = \[", project.split("[project.optional-dependencies]")[1].split("\n[")[0], re.M)) - {
        "dev",
        "docs",
    }
    assert "--no-deps lmms-eval" in doctor.OPTIONAL["lmms-eval"]


def test_secrets_are_not_shown(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret_value")
    findings = doctor.examine()
    assert by_item(findings)["HF_TOKEN"].found == "set"
    assert not any("planted" in f"{f.found}{f.advice}" for f in findings)
