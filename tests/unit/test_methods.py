"""What `vlmrl list` shows: descriptions, arguments as a recipe writes them, the markdown of sources, plug-ins."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from vlmrl import cli
from vlmrl.cards import Card
from vlmrl.config.load import load_mapping
from vlmrl.errors import ConfigError
from vlmrl.methods import (
    CORE,
    OTHERS,
    argument_line,
    by_card,
    described,
    listed_presets,
    method_problems,
    papers,
    preset_table,
    registries,
    setting_lines,
)
from vlmrl.registry import Registry

ROOT = Path(__file__).parents[2]


@pytest.fixture
def small() -> dict[str, Registry[Any]]:
    """One slot with a method from a paper, one of ours, and one that is partly a guess."""
    registry: Registry[Any] = Registry("advantage")

    @registry("plain")
    def plain(x: int, *, length: int) -> int:
        """Nothing | special."""
        return x

    @registry("known", paper="arXiv:2402.03300, section 4", needs=("answer_N", "logp_N"))
    def known(x: int, *, epsilon: float = 1e-6, kind: Literal["a", "b"] = "a", cap: float | None = None) -> int:
        """First line.

        Second paragraph.
        """
        return x

    @registry("known_proposed", paper="A talk, 2020")
    def known_proposed(x: int, *, on: bool = True) -> int:
        """A guess."""
        return x

    return {"advantage": registry}


@pytest.fixture
def run(monkeypatch, capsys):
    def _run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vlmrl", "list", *arguments])
        monkeypatch.setenv("COLUMNS", "220")
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return _run


def test_described(small):
    assert described("advantage", small["advantage"].get("known")) == {
        "name": "known",
        "summary": "First line.",
        "paper": "arXiv:2402.03300, section 4",
        "proposed": False,
        "needs": ["answer_N", "logp_N"],
        "arguments": [
            {"name": "epsilon", "type": "float", "default": 1e-6},
            {"name": "kind", "type": "one of 'a', 'b'", "default": "a"},
            {"name": "cap", "type": "float or None", "default": None},
        ],
        "card": Card().values() | {"evidence": "", "said": ""},
    }
    assert described("advantage", small["advantage"].get("plain"))["arguments"] == [{"name": "length", "type": "int"}]
    assert described("advantage", small["advantage"].get("known_proposed"))["proposed"] is True


def test_the_core_stands_first():
    parts = by_card("advantage", registries()["advantage"])
    assert [head for head, _ in parts] == [CORE, OTHERS]
    core, others = ([method["name"] for method in part] for _, part in parts)
    assert {"grpo", "rloo", "mc_grpo"} <= set(core)
    assert {"hapo", "polychromic_proposed"} <= set(others)
    assert sorted(core + others) == registries()["advantage"].names()


def test_a_part_without_a_method_has_no_head(small):
    assert [head for head, _ in by_card("advantage", small["advantage"])] == [OTHERS]
    assert [head for head, _ in by_card("reducer", registries()["reducer"])] == [CORE]


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ({"name": "length", "type": "int"}, "length: int"),
        ({"name": "on", "type": "bool", "default": True}, "on: bool = true"),
        ({"name": "cap", "type": "float or None", "default": None}, "cap: float or None = null"),
        ({"name": "kind", "type": "str", "default": "Maß"}, 'kind: str = "Maß"'),
    ],
)
def test_defaults_are_written_as_in_a_recipe(argument, line):
    assert argument_line(argument) == line


def test_papers_is_a_table_per_slot(small):
    text = papers(small)
    assert text.endswith("|\n")
    rows = text.split("## advantage\n")[1].strip().split("\n")
    assert rows[0] == "In a stage of a recipe: `advantage`."
    assert rows[2:6] == [
        OTHERS,
        "",
        "| name | what it does | source | read | evidence | parameters | needs |",
        "|---|---|---|---|---|---|---|",
    ]
    assert rows[6] == (
        "| `known` | First line. | [arXiv:2402.03300](https://arxiv.org/abs/2402.03300), section 4 |  |  | "
        "`epsilon: float = 1e-06`<br>`kind: one of 'a', 'b' = \"a\"`<br>`cap: float or None = null` | `answer_N`, `logp_N` |"
    )
    assert rows[7] == "| `known_proposed` (part of it is our guess) | A guess. | A talk, 2020 |  |  | `on: bool = true` |  |"
    assert rows[8] == r"| `plain` | Nothing \| special. |  |  |  | `length: int` |  |"


def test_every_slot_has_its_place_in_a_recipe():
    text = papers(registries())
    for line in (
        "`rollout.strategy`",
        "`loss`",
        "`reduce`",
        "`kl`",
        "`constraints`",
        "`group_loss`",
        "`importance_correction`",
        "`budget`",
    ):
        assert f"In a stage of a recipe: {line}." in text


def test_list_papers_of_one_slot(run):
    code, out, _ = run("importance_correction", "--papers")
    assert code == 0
    assert out.count("\n## ") == 1
    assert "| `tis` |" in out


def test_list_shows_needs_and_defaults(run):
    code, out, _ = run("advantage", "gigpo")
    assert code == 0
    assert "trajectory_N" in out
    code, out, _ = run("advantage", "grpo")
    assert "ddof: one of 0, 1 = 1" in out
    assert "arXiv:2402.03300" in out


def test_list_shows_the_core_first_with_its_evidence(run):
    _, out, _ = run("filter")
    first, second = (out.index(f"filter. {head.partition(':')[0]}") for head in (CORE, OTHERS))
    assert first < out.index("mc_grpo_pivot") < second < out.index("selective_sample_buffer")
    assert "holds" in run("mc_grpo_pivot")[1]


def test_list_json_holds_cards(run):
    _, out, _ = run("filter", "--json")
    found = {method["name"]: method["card"] for method in json.loads(out)["filter"]}
    assert found["mc_grpo_pivot"]["evidence"] == "claim mc_grpo: holds"
    assert found["zero_variance"]["core"] == ["recipe", "claim", "verl"]
    assert found["pods"]["read"] == "abstract"


def test_list_json_holds_needs(run):
    _, out, _ = run("credit", "--json")
    assert next(m for m in json.loads(out)["credit"] if m["name"] == "tempo")["needs"] == ["ids_NT"]


def test_list_papers_as_json(run):
    code, out, _ = run("--papers", "--json")
    listed = json.loads(out)
    assert code == 0
    assert listed["in_scope"] == sum(paper["status"] != "out of scope" for paper in listed["papers"]) == 135
    assert listed["in"] == sum(paper["status"] == "in" for paper in listed["papers"])
    one = next(paper for paper in listed["papers"] if paper["title"].startswith("TempSamp-R1"))
    assert one["status"] == "in"
    assert "strategy offpolicy_gt" in one["methods"]


def test_list_papers_as_json_takes_no_slot(run):
    code, _, err = run("advantage", "--json", "--papers")
    assert code == ConfigError.exit_code
    assert "leave 'advantage' out" in err


def test_list_with_the_plugins_of_a_recipe(run, tmp_path, monkeypatch):
    (tmp_path / "listed_plugin.py").write_text(
        "from vlmrl.protocols import reward\n\n\n"
        "@reward('of_the_recipe')\n"
        "def of_the_recipe(group, ctx, *, bound: int = 3):\n"
        "    '''One for a test.'''\n"
        "    return [1.0 for _ in group.rollouts]\n"
    )
    recipe = tmp_path / "r.yaml"
    # the name of the advantage is wrong: a list helps to find the right one, so it must not be refused
    recipe.write_text(
        "model: {path: m}\nplugins: [listed_plugin]\nstages:\n  - {kind: grpo, name: s, source: {path: a.jsonl}, steps: 1, "
        "rewards: [{name: of_the_recipe}], advantage: {name: grop}}\n"
    )
    from vlmrl.protocols import reward

    before = dict(reward._entries)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(reward, "_entries", dict(before))
    code, out, _ = run("reward", "--recipe", str(recipe))
    assert code == 0
    assert "of_the_recipe" in out
    assert "bound: int = 3" in run("of_the_recipe", "--recipe", str(recipe))[1]


def test_list_with_a_plugin_that_is_not_there(run):
    code, _, err = run("--plugin", "no.such.module")
    assert code == ConfigError.exit_code
    assert "cannot import 'no.such.module'" in err
    assert "PYTHONPATH" in err


# ---- presets --------------------------------------------------------------------------------------------------------------


def test_presets_are_listed_as_a_table_first_and_by_themselves(run):
    code, out, _ = run("algorithm")
    assert code == 0
    assert "dapo" in out
    assert "policy_loss" not in out
    for name, parts in {
        "dapo": ("filters: [{name: zero_variance}]", "arXiv:2503.14476", "soft overlong punishment"),
        "ton": ("sft: thought_dropout: 0.5",),
    }.items():
        one = " ".join(run("algorithm", name)[1].split())
        assert all(part in one for part in parts)
    code, whole, _ = run()
    assert code == 0
    assert whole.lstrip().startswith("algorithm")
    assert "policy_loss" in whole


def test_presets_as_json_and_not_among_the_slots(run):
    code, out, _ = run("algorithm", "--json")
    assert code == 0
    listed = {one["name"]: one for one in json.loads(out)["algorithm"]}
    assert listed["dapo"]["paper"] == "arXiv:2503.14476"
    assert listed["dapo"]["sets"]["grpo"]["loss"] == {"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28}
    assert set(listed["ton"]["sets"]) == {"sft", "grpo"}
    assert "algorithm" not in json.loads(run("--json")[1])


def test_setting_lines():
    preset = {
        "sets": {"sft": {"thought_dropout": 0.5}, "grpo": {"loss": {"name": "gspo", "clip_low": 1e-3}, "filters": [{"name": "overlong"}]}}
    }
    assert setting_lines(preset) == ["sft: thought_dropout: 0.5", "loss: {name: gspo, clip_low: 0.001}", "filters: [{name: overlong}]"]


def test_the_table_of_presets_is_fresh():
    table = preset_table()
    assert len(table.splitlines()) == 2 + len(listed_presets())
    assert "[arXiv:2503.14476](https://arxiv.org/abs/2503.14476)" in table
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert table in page, "put the output of: vlmrl list algorithm --papers"


def test_a_misspelt_algorithm_is_told(run):
    code, _, err = run("algoritm")
    assert code == 64
    assert "nothing to list is called 'algoritm'; did you mean 'algorithm'?" in err
    assert "slots: algorithm, advantage," in err


def test_a_worker_for_a_reward_that_none_can_run_is_refused_at_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the recipe is loaded, not when its stage begins: of a judge, which asks a server, and of what this text registers."""
    from vlmrl.protocols import reward

    monkeypatch.setattr(reward, "_entries", dict(reward._entries))
    exec("@reward('of_a_cell')\ndef of_a_cell(group, ctx):\n    'Mine.'\n", {"__name__": "__main__", "reward": reward})
    rewards = [{"name": name, "isolate": True} for name in ("exact", "judge", "of_a_cell", "exat")]
    stage = {"kind": "grpo", "name": "rl", "source": {"path": "a.jsonl"}, "steps": 1, "rewards": rewards}
    with pytest.raises(ConfigError) as caught:
        load_mapping({"model": {"path": "m"}, "stages": [stage]}, [], also=method_problems)
    apart = [problem for problem in caught.value.problems if ".isolate: " in problem]
    assert ["rewards.1.isolate" in apart[0], "rewards.2.isolate" in apart[1], len(apart)] == [True, True, 2]
    assert "asks a server" in apart[0]
    assert "of_a_cell' is registered by a script or a notebook" in apart[1]
