"""`import vlmrl`: light, and with a small surface that is documented."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import vlmrl
from vlmrl.config.load import ResolvedRecipe, load, load_mapping
from vlmrl.errors import ConfigError

ROOT = Path(__file__).parents[2]
MAPPING = {
    "run": {"name": "yes", "seed": 3},
    "model": {"path": Path("somewhere")},
    "stages": [{"kind": "grpo", "name": "rl", "source": {"path": "a.jsonl"}, "steps": 1, "rewards": [{"name": "exact"}]}],
}


def test_importing_it_loads_nothing_heavy():
    code = (
        "import sys, vlmrl\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pydantic', 'yaml', 'av', 'PIL', 'rich', 'typer', 'httpx'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert {'train', 'load_recipe', 'evaluate', 'compare', 'reward', 'EndpointEngine'} <= set(dir(vlmrl))\n"
        "vlmrl.reward, vlmrl.train\n"
        "assert 'torch' not in sys.modules\n"
        "load = vlmrl.load_recipe\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_surface_is_what_the_page_says():
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `vlmrl\.(\w+)", page, re.M)
    assert sorted({*rows, "__version__"}) == sorted(vlmrl.__all__)
    for name in vlmrl.__all__:
        assert getattr(vlmrl, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = vlmrl.trian


def test_names_are_the_objects_of_their_modules():
    from vlmrl import api
    from vlmrl.algo.registries import advantage
    from vlmrl.extras.judges.endpoint import EndpointEngine
    from vlmrl.protocols import reward

    assert vlmrl.load_recipe is api.load_recipe
    assert vlmrl.reward is reward
    assert vlmrl.advantage is advantage
    assert vlmrl.EndpointEngine is EndpointEngine


def test_the_package_train_is_a_package_and_a_function(monkeypatch: pytest.MonkeyPatch):
    import vlmrl.run.results
    from vlmrl import api

    monkeypatch.setattr(api, "train", lambda *args, **kwargs: (args, kwargs))
    assert vlmrl.train("recipe", ["a=1"], quiet=True) == (("recipe", ["a=1"]), {"quiet": True})
    assert vlmrl.run.results.__name__ == "vlmrl.run.results"


def test_a_mapping_is_a_recipe(tmp_path: Path):
    """With the config and the hash of the same recipe in a file; texts that look like other values stay texts."""
    out = vlmrl.load_recipe(MAPPING, ["run.seed=5"])
    assert isinstance(out, ResolvedRecipe)
    assert (out.config.run.name, out.config.run.seed, out.config.model.path) == ("yes", 5, "somewhere")
    file = tmp_path / "r.yaml"
    file.write_text(
        "run: {name: 'yes', seed: 5}\nmodel: {path: somewhere}\n"
        "stages:\n  - {kind: grpo, name: rl, source: {path: a.jsonl}, steps: 1, rewards: [{name: exact}]}\n"
    )
    assert out.hash == load(file, []).hash
    assert out.origins["run.seed"] == "command line"
    assert out.origins["run.name"] == "the recipe"
    assert vlmrl.load_recipe(out) is out
    with pytest.raises(ValueError, match="loaded already"):
        vlmrl.load_recipe(out, ["run.seed=1"])


def test_a_mapping_may_name_a_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    out = load_mapping({"base": "qwen2_5_vl_3b", "stages": MAPPING["stages"]}, [])
    assert out.config.model.path == "Qwen/Qwen2.5-VL-3B-Instruct"
    assert "comes with vlmrl" in out.notes[0]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"run": {"nmae": "x"}}, "the recipe: run: unknown key 'nmae'; did you mean 'name'|unknown.*nmae.*name"),
        ({"run": {"seed": float("nan")}}, "only plain values"),
        ({"run": {"name": object()}}, "only plain values .* object"),
        ({"stages": [{"rewards": [{"name": "python", "function": len}]}]}, r"functions in vlmrl\.grpo\(\): .*len"),
        ({"stages": [{"kind": "grpo", "name": "rl", "source": {"path": "a"}, "steps": 1, "rewards": [{"name": "exat"}]}]}, "exact"),
    ],
)
def test_what_is_wrong_in_a_mapping_is_said(wrong: dict, problem: str):
    with pytest.raises(ConfigError, match=problem):
        vlmrl.load_recipe({**MAPPING, **wrong})
