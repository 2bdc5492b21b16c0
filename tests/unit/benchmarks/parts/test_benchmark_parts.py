"""Programs that time one part: every method gets what it needs, and a very small setting goes from the command to the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import module


@pytest.mark.parametrize(
    ("program", "options", "seen"),
    [
        ("algorithms", ["--rollouts", "32", "--tokens", "32", "--repeats", "1"], "canon_entropy"),
        ("planning", ["--rows", "100", "--steps", "2"], "`vade`"),
    ],
)
def test_a_very_small_setting_runs(program: str, options: list[str], seen: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    done = module(f"benchmarks.parts.{program}", *options, "--write", str(page))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert seen in page.read_text()
    assert f"python -m benchmarks.parts.{program} {' '.join(options)}" in page.read_text()
