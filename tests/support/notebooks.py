"""Runs the code cells of a notebook as a kernel does: in order, in one namespace, under a running event loop."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path


def cells(path: Path) -> list[str]:
    """The code cells of a notebook; it has to be of format 4, without outputs of somebody's machine."""
    book = json.loads(path.read_text(encoding="utf-8"))
    assert book["nbformat"] == 4
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code), "clear the outputs before you commit"
    ids = [cell["id"] for cell in book["cells"]]
    assert len(ids) == len(set(ids))
    return ["".join(cell["source"]) for cell in code]


async def run(path: Path) -> None:
    """Every cell; the first that fails ends it with its number."""
    space: dict[str, object] = {"__name__": "__main__"}
    for number, code in enumerate(cells(path), 1):
        try:
            exec(compile(code, f"{path.name}, code cell {number}", "exec"), space)
        except Exception as error:
            error.add_note(f"in code cell {number} of {path.name}") if sys.version_info >= (3, 11) else None
            raise


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
