"""Cases of a parametrised test of which the default run takes some, and `pytest -m slow` the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], always: Collection[Any]) -> list[Any]:
    """The same cases in the same order; those that are not in `always` are slow ones. A tuple is a case of several arguments.

    Raises:
        ValueError: `always` names a case that does not exist.
    """
    cases = list(cases)
    if unknown := [case for case in always if case not in cases]:
        raise ValueError(f"no such cases: {unknown}")
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*value, marks=() if case in always else pytest.mark.slow) for case, value in zip(cases, values, strict=True)]
