"""Catalogues: things by name, in the order in which they were added."""

from __future__ import annotations

import pytest

from vlmrl.registry import Catalogue


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
