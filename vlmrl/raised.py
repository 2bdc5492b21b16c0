"""What code of the user's raised, in one line with its place."""

from __future__ import annotations

import traceback
from pathlib import Path

_PACKAGE = Path(__file__).parent


def told(error: Exception) -> str:
    """Say what was raised, and where code that is not ours was then, or called what raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_file()]
    own = [frame for frame in frames if not Path(frame.filename).is_relative_to(_PACKAGE) and frame.name != "import_module"]
    return f"{type(error).__name__}: {error}" + (f" ({own[-1].filename}:{own[-1].lineno})" if own else "")
