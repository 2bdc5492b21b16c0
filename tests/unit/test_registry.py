"""Things by name: in the order in which they were added, and imported when they are first asked for."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from vlmrl.registry import Catalogue, Registry, load


def test_a_catalogue_is_a_mapping_in_the_order_of_adding() -> None:
    fruit: Catalogue[int] = Catalogue("fruit", renamed={"pome": "apple"})
    fruit.add("pear", 1)
    fruit.add("apple", 2)
    assert list(fruit.items()) == [("pear", 1), ("apple", 2)]
    assert (len(fruit), "pear" in fruit, fruit.get("plum")) == (2, True, None)
    assert fruit.problem("pear") is None


def test_a_name_means_one_thing() -> None:
    things: Catalogue[object] = Catalogue("thing")
    one = object()
    things.add("a", one)
    things.add("a", one)
    with pytest.raises(ValueError, match="thing 'a' is registered twice"):
        things.add("a", object())


def test_unknown_and_old_names_are_told() -> None:
    fruit: Catalogue[int] = Catalogue("fruit", renamed={"pome": "apple"})
    fruit.add("apple", 2)
    assert fruit.problem("appel") == "unknown fruit 'appel'; did you mean 'apple'? (known: apple)"
    with pytest.raises(KeyError, match="fruit 'pome' is called 'apple' now"):
        fruit["pome"]


def test_a_lazy_thing_is_imported_when_it_is_asked_for() -> None:
    things: Catalogue[object] = Catalogue("thing", {"b": 1}, {"a": "vlmrl.rng:key"})
    assert (list(things), len(things), "a" in things, "c" in things) == (["b", "a"], 2, True, False)
    from vlmrl import rng

    assert things["a"] is rng.key
    things["b"] = 2
    assert list(things.values()) == [2, rng.key]
    with pytest.raises(KeyError, match=r"unknown thing 'aa'; did you mean 'a'\? \(known: b, a\)"):
        things["aa"]


def test_what_extras_add_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlmrl.registry.PROVIDES", {"thing": {"c": "vlmrl.rng:key"}, "other": {"d": "vlmrl.rng:key"}})
    things: Catalogue[object] = Catalogue("thing", {"b": 1}, {"a": "vlmrl.fs:nothing"})
    assert list(things) == ["b", "a", "c"]
    assert things["c"] is load("vlmrl.rng:key")


def test_what_no_run_asks_for_is_not_imported() -> None:
    """In a process of its own: packings of episodes come in by their names."""
    asked = """
import sys
from vlmrl.policy.forward import LAYOUTS
names = [name.rpartition(".")[2] for name in sys.modules if name.startswith("vlmrl.")]
assert not {"chains", "trie"} & set(names), names
assert list(LAYOUTS) == ["shared_prefix", "repeat", "chains", "trees"]
from vlmrl.extras.agents.chains import CHAINS
from vlmrl.extras.agents.trie import TREES
assert LAYOUTS["chains"] is CHAINS and LAYOUTS["trees"] is TREES
"""
    subprocess.run([sys.executable, "-c", asked], check=True)


def test_whose_a_registration_is_the_file_says_and_not_a_name(tmp_path) -> None:
    """A plug-in may call its module what it likes, and register what lives in the package."""
    from vlmrl.protocols import reward
    from vlmrl.rewards.format import format_reward

    assert reward.get("format").ours
    known: Registry[Any] = Registry("reward")
    source = """
def mine(group, ctx):
    'Mine.'

mine = known("mine")(mine)
known("lent")(lent)
"""
    name = "vlmrl.rewards.mine"
    exec(
        compile(source, str(tmp_path / "vlmrl" / "rewards" / "mine.py"), "exec"), {"__name__": name, "known": known, "lent": format_reward}
    )
    assert known.get("mine").function.__module__ == name
    assert not known.get("mine").ours
    assert not known.get("lent").ours
    assert reward.get("format").module == "vlmrl.rewards.format"
    assert known.get("lent").module == name
