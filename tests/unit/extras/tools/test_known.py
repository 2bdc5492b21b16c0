"""The registries out of the kept file say what the registries themselves say, and a check with them says the same."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.parts import startup
from vlmrl.extras.tools import known
from vlmrl.methods import registries
from vlmrl.registry import Registry, type_name

REAL = registries()
RIGHT = {
    "advantage": {"name": "g2rpo"},
    "reduce": {"name": "token_mean"},
    "reward_shaping": [{"name": "length_envelope", "reward": "urpa"}],
    "rewards": [{"name": "urpa"}, {"name": "right_without_thought", "weight": 0.5}],
}
"""Rules that have something to say: one that needs torch and asks the registry of another slot (`urpa`), and some that need none."""
WRONG = {
    "loss": {"name": "ppo_clip", "clip_lw": 0.1},
    "advantage": {"name": "grpo", "epsilon": "small"},
    "reduce": {"name": "token_mean", "kwargs": {"a": 1}},
    "rewards": [{"name": "exact", "wieght": 2.0}, {"name": "judge", "isolate": True}, {"name": "right_without_thought"}],
    "answer_format": "answer_only",
    "environment": {"name": "web_page", "folder": "nowhere"},
}
"""Every kind of problem that methods have, but for a name that there is not."""
RUN = """
import sys
if sys.argv[1] == "asked":
    import torch
del sys.argv[1]
from vlmrl.cli import main
try:
    main()
finally:
    print("torch:", "torch" in sys.modules)
"""


@pytest.fixture(scope="module")
def found() -> Mapping[str, Registry[Any]]:
    """What is read of what would be written."""
    return known.known(json.loads(json.dumps(known.gathered())))


def test_every_registration_is_kept_whole(found: Mapping[str, Registry[Any]]) -> None:
    assert list(found) == list(REAL)
    for slot, registry in REAL.items():
        for name in (name for name in registry.names() if registry.get(name).ours):  # another test may have left a method
            one, kept = registry.get(name), found[slot].get(name)
            assert (kept.name, kept.paper, kept.ours, kept.module, kept.summary) == (name, one.paper, True, one.module, one.summary)
            assert kept.parameters == one.parameters
            assert [type_name(p.annotation) for p in kept.parameters.values()] == [type_name(p.annotation) for p in one.parameters.values()]
            assert {key for key, value in kept.extra.items() if callable(value)} == {
                k for k in one.extra if inspect.isfunction(one.extra[k])
            }
            plain = {key: value for key, value in one.extra.items() if not inspect.isfunction(value)}
            assert {key: kept.extra[key] for key in plain} == plain
            assert [type(kept.extra[key]) for key in plain] == [type(value) for value in plain.values()]


def test_a_function_is_the_one_that_was_registered(found: Mapping[str, Registry[Any]]) -> None:
    """Those that stand in a module under their name are imported from there, and the others asked of the registries."""
    for slot, registry in REAL.items():
        for name in (name for name in registry.names() if registry.get(name).ours):
            one, kept = registry.get(name), found[slot].get(name)
            pairs = [(one.function, kept.function), *((one.extra[key], kept.extra[key]) for key in one.extra if callable(kept.extra[key]))]
            assert all(called._function() is function for function, called in pairs)


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: None, b"bytes", [object]])
def test_what_json_cannot_say_is_not_kept(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be kept"):
        known.written(value)


def test_a_tuple_stays_one_and_a_key_its_type() -> None:
    value = {1: (1, [2.5, None]), "a": ({"b": float("inf")}, True)}
    assert known.read(json.loads(json.dumps(known.written(value)))) == value


def check(folder: Path, how: str, stage: Mapping[str, Any]) -> tuple[int, str, bool]:
    """Exit code of a check, what it said, and whether torch came with it."""
    rl = {"kind": "grpo", "name": "rl", "source": {"path": "a.jsonl"}, "steps": 1, **stage}
    (folder / "mine.yaml").write_text(json.dumps({"model": {"path": "m"}, "stages": [rl]}))
    command = [sys.executable, "-c", RUN, how, "check", "mine.yaml", "--no-data"]
    done = subprocess.run(command, cwd=folder, env=startup.environment(folder), capture_output=True, text=True, timeout=300)
    *said, torch = done.stdout.splitlines()
    return done.returncode, "\n".join([*said, done.stderr]), torch == "torch: True"


def test_a_check_with_the_file_says_what_one_without_it_says(tmp_path: Path) -> None:
    check(tmp_path, "kept", RIGHT)  # the first one makes the file
    for stage, code, told in (RIGHT, 0, "warning: "), (WRONG, 64, "10 problems:"), ({"rewards": [{"name": "exct"}]}, 64, "unknown reward"):
        kept, asked = check(tmp_path, "kept", stage), check(tmp_path, "asked", stage)
        assert kept[:2] == asked[:2]
        assert kept[0] == code
        assert told in kept[1]


def test_a_check_of_names_and_arguments_needs_no_torch(tmp_path: Path) -> None:
    stage = {"loss": {"name": "gspo"}, "rewards": [{"name": "exact"}, {"name": "right_without_thought", "weight": 0.5}]}
    assert [check(tmp_path, "kept", stage)[0::2] for _ in range(2)] == [(0, True), (0, False)]
    assert check(tmp_path, "kept", stage | {"loss": {"name": "gspo", "clip": 1.0}})[0::2] == (64, False)
