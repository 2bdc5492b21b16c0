"""What an import of lmms-eval changes in a process is undone after every test, so that no other test of the same process sees it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PIL import ImageFile


@pytest.fixture(autouse=True)
def _strict_pillow_afterwards() -> Iterator[None]:
    """lmms-eval lets Pillow open pictures that are cut off; ours refuses to decode while that is so."""
    yield
    ImageFile.LOAD_TRUNCATED_IMAGES = False
