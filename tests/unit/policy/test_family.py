"""Every supported model family, on a tiny checkpoint of it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from tests.support.family import check_family
from tests.support.tiny import make_files
from vlmrl.extras.toy.model import ModelFamily
from vlmrl.families.registry import FAMILIES


@pytest.mark.parametrize("family", get_args(ModelFamily))
def test_layouts_and_engine_agree(family: ModelFamily, tmp_path: Path) -> None:
    check_family(*make_files(tmp_path, sft=1, train=2, test=1, family=family))


def test_a_tiny_model_can_be_made_of_every_family() -> None:
    """A family that is another one under its own `model_type` has a test of its own (CONTRIBUTING.md)."""
    own = {path.stem.removeprefix("test_family_") for path in Path(__file__).parent.glob("test_family_*.py")}
    assert set(FAMILIES) == {*get_args(ModelFamily), *own}
