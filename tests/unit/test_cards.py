"""vlmrl.cards: one line of what stands behind a method, and cards from the two files."""

from __future__ import annotations

import pytest

from vlmrl.cards import Card, card


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (Card(), ""),
        (Card(read="code", pays="always"), ""),
        (Card(claims={"a": "holds", "b": "no effect above delta"}), "claim a: holds; claim b: no effect above delta"),
        (Card(agrees=("TRL", "verl")), "same numbers as TRL and verl"),
        (Card(kits=("ton",), recipes=("ton",)), "kit ton"),
        (Card(kits=("g2rpo", "ton"), recipes=("dpo", "g2rpo", "ton", "toy_ton")), "kits g2rpo, ton; 2 further recipes"),
        (Card(kits=("ton",), recipes=("dpo", "ton")), "kit ton; recipe dpo"),
        (Card(recipes=("dpo",)), "recipe dpo"),
        (Card(recipes=("dpo", "ton")), "2 recipes"),
        (Card(claims={"a": "holds"}, agrees=("TRL",), recipes=("dpo",)), "claim a: holds; same numbers as TRL; recipe dpo"),
    ],
)
def test_evidence_is_one_line(given: Card, line: str) -> None:
    assert given.evidence == line


def test_what_tables_say_of_a_method() -> None:
    assert Card().said == ""
    assert Card(pays="often").said == "pays: often"
    assert Card(recipes=("dpo",), pays="often", stays="why").said == "recipe dpo; pays: often; stays: why"


def test_a_card_has_both_files() -> None:
    found = card("advantage", "mc_grpo")
    assert (found.read, found.core) == ("code", ("claim",))
    assert found.claims == {"mc_grpo": "holds"}
    assert found.pays is not None
    assert found.values()["core"] == ("claim",)


def test_the_same_name_in_two_slots_has_two_cards() -> None:
    assert "TRL" in card("filter", "overlong").core
    assert not card("reward", "overlong").core


def test_a_method_that_no_file_names_has_an_empty_card() -> None:
    assert card("advantage", "of_a_plug_in") == Card()
    assert Card().values() == {
        "core": (),
        "read": None,
        "claims": {},
        "kits": (),
        "recipes": (),
        "agrees": (),
        "pays": None,
        "stays": None,
    }
