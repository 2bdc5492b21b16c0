"""Needs and their providers: found by field, asked once, put where methods look."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.algo.needs import need
from vlmrl.errors import ConfigError
from vlmrl.train.stage import provide, providers  # noqa: F401 (the latter registers the package's)
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.provide import PROVIDERS, Providers, provides


def method(*needs: str, name: str = "m", **arguments: Any) -> Bound:
    return Bound(
        slot="advantage", name=name, call=lambda x: x, extra={"needs": needs}, arguments=arguments, defaults={"every": 10, "decay": 0.995}
    )


@pytest.fixture
def registered() -> Iterator[None]:
    before = dict(PROVIDERS)
    yield
    PROVIDERS.clear()
    PROVIDERS.update(before)


def batch(rows: int = 3) -> Any:
    x = inputs([(float(n), 0, True) for n in range(rows)])
    return SimpleNamespace(x=x, mine=torch.arange(rows))


def test_a_need_is_fetched_once_and_only_if_somebody_has_it(registered: None) -> None:
    asked: list[str] = []

    @provides("gaze_N", "gaze_NT")
    def gaze(stage: Any, batch: Any, method: Bound) -> dict[str, torch.Tensor]:
        """Where they look."""
        asked.append(method.name)
        return {"gaze_N": torch.tensor([1.0, 2.0, 3.0]), "gaze_NT": torch.ones(3, 2)}

    of = batch()
    before, plain = of.x, method("tasks", "progress")
    Providers.of([plain]).fill(None, of, [plain])
    assert of.x is before
    assert asked == []
    both = [method("gaze_N", name="first"), method("gaze_NT", "gaze_N", name="second")]
    Providers.of(both).fill(None, of, both)
    x = of.x
    assert asked == ["first"]
    assert need(x, "gaze_N", "advantage 'first'").tolist() == [1.0, 2.0, 3.0]
    part = x.of_rows(torch.tensor([2]), tokens=1)
    assert part.provided["gaze_N"].tolist() == [3.0]
    assert part.provided["gaze_NT"].shape == (1, 1)


def test_what_nothing_provides_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="'m' needs 'entropi_NT', which nothing provides; did you mean 'entropy_NT'"):
        Providers.of([method("entropi_NT")])


def test_methods_that_share_a_need_agree_on_its_arguments() -> None:
    Providers.of([method("consistency_N", every=5), method("consistency_N", every=5, name="n")])
    with pytest.raises(ConfigError, match="'m' and advantage 'n' both need 'consistency_N', with different every"):
        Providers.of([method("consistency_N"), method("consistency_N", every=5, name="n")])


@pytest.mark.parametrize("name", ["gaze", "weights_K", "entropy_NT"])
def test_names_without_axes_and_names_twice_are_refused(name: str, registered: None) -> None:
    def found(stage: Any, batch: Any, method: Bound) -> dict[str, torch.Tensor]:
        """Something."""
        return {}

    with pytest.raises(ValueError, match=name):
        provides(name)(found)


def test_values_of_all_ranks_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has rows 0 and 2 of two tokens, the other rank row 1 of three; tokens are padded with zeros to the longest."""
    other = (torch.tensor([1]), torch.tensor([[5.0, 6.0, 7.0]]))
    monkeypatch.setattr(provide.dist, "gather", lambda own: [own, other])
    found = provide._everywhere(torch.tensor([0, 2]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 3)
    assert found.tolist() == [[1.0, 2.0, 0.0], [5.0, 6.0, 7.0], [3.0, 4.0, 0.0]]
