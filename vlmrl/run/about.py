"""What an exported folder says of itself in `vlmrl.json`, so that a copy of it can be asked and published without its run."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from vlmrl import __version__
from vlmrl.evals.ask.asking import ASKED, ORIGIN, asked_by
from vlmrl.run.session import Session, fixed_options
from vlmrl.types import digest


def about(s: Session, name: str | None = None) -> dict[str, Any]:
    """How the model of the current stage is asked, which run and stage made it, and with which versions. No paths of the machine.

    `name`: what the weights are called, if not as the stage (`rl@40` during it).
    """
    stage, cfg = s.cfg.stages[s.state.stage], s.cfg
    rows = s.rows.get((stage.source, stage.answer_format))
    return {
        ASKED: asked_by(cfg, stage, () if rows is None else rows.samples.values()),
        ORIGIN: {
            "run": cfg.run.name,
            "stage": name or stage.name,
            "recipe": digest(fixed_options(cfg)),
            "base_model": base_name(cfg.model.path),
        },
        "versions": {"vlmrl": __version__, "torch": version("torch"), "transformers": version("transformers")},
    }


def base_name(path: str) -> str:
    """A hub id as it is; of a folder its last name, or of `<run>/final` and the like the run's too."""
    folder = Path(path).expanduser()
    if not folder.exists():
        return path
    parts = folder.resolve().parts
    return "/".join(parts[-2:]) if folder.resolve().name == "final" else parts[-1]
