"""Checks a file of rows without a recipe (`vlmrl check FILE`): which shape it has, which rows are good, why others are not, and whether
every gold answer is right by the parser that training uses.

The file stands in a recipe made here, of one stage, so that everything is as `vlmrl check RECIPE` does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vlmrl.config import explain, tree
from vlmrl.config.schema import Config
from vlmrl.config.tree import Node
from vlmrl.errors import ConfigError
from vlmrl.run.audit_known import CACHE
from vlmrl.run.audit_report import AuditReport, SourceAudit
from vlmrl.run.audit_source import audited, tally, terms_of
from vlmrl.run.media import media_settings, open_media
from vlmrl.run.ui import Ui

STAGE = "rows"
_KEYS = f"stages.{STAGE}.source."
_FREE = 1 << 30
"""Prompt tokens, where no model says how many there are."""


def rows_config(rows: Path, settings: Sequence[str], *, media_root: Path | None, model: str | None) -> Config:
    """A recipe of one stage that reads `rows`.

    Args:
        settings: `KEY=VALUE` of a source: `answer_type=choice`, `columns={prompt: question}`.
        media_root: folder of the media; None is that of the file.
        model: whose processor makes prompts and pixels; None is the embedded tiny model's, whose tokens are not counted.

    Raises:
        ConfigError: with every problem of the settings.
    """
    # The name may be that of a split or a share (org/name@train, rows.jsonl#500), which `data.raw` understands.
    start = {
        "model": {"path": model or "toy"},
        "toy": None if model else {},
        "data": {"root": str(media_root or rows.absolute().parent), **({} if model else {"max_prompt_tokens": _FREE})},
        "stages": [{"kind": "sft", "name": STAGE, "source": {"path": str(rows.absolute())}, "steps": 1, "answer_format": "think"}],
    }
    root, problems = _node(start), list[str]()
    for setting in settings:
        root = tree.override(root, f"{_KEYS}{setting}", problems, {})
    config = explain.check(root, problems)
    if problems or config is None:
        raise ConfigError([problem.replace("override: ", "", 1).replace(_KEYS, "").replace(f"{_KEYS[:-1]}: ", "") for problem in problems])
    return config


def _node(value: object) -> Node:
    if isinstance(value, dict):
        return Node({str(key): _node(inner) for key, inner in value.items()}, "--rows")  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list):
        return Node([_node(inner) for inner in value], "--rows")  # pyright: ignore[reportUnknownVariableType]
    return Node(value, "--rows")


def audit_rows(config: Config, ui: Ui, *, media: bool = True, cache: Path = CACHE) -> AuditReport:
    """Check every row of the file: it is read, its media are decoded, its prompt is measured where a model is named, and its gold answer
    is scored.

    Args:
        media: whether media are opened; prompts are measured only with them.

    Raises:
        ConfigError: the model's processor cannot be loaded.
        DataError: the file cannot be read, or what the source says of it is wrong.
    """
    (stage,) = config.stages
    data, encoder = Path(config.data.root), None
    if media and config.toy is None:
        from vlmrl.policy.load import load_processor, quiet_transformers  # seconds, and only for a model that was named

        quiet_transformers()
        bundle = load_processor(config.model.path, revision=config.model.revision, max_tiles=config.media.max_tiles)
        _, encoder = open_media(config, bundle, data)
    settings = media_settings(config) if media else None
    terms = terms_of(stage.source, stage.answer_format, data, settings=settings, encoder=encoder, decode=True, all_gold=True)
    found = SourceAudit(path=stage.source.path, answer_format=stage.answer_format, used_by=[stage.name])
    tally(found, audited(data / stage.source.path, terms, ui, encoder=encoder, cache=cache), config.data.dedupe)
    return AuditReport(sources=[found])


def told(report: AuditReport, *, counted: bool) -> list[str]:
    """Lines for the terminal: shape, counts, and for every reason its number and its first row.

    Args:
        counted: whether prompts were counted in the tokens of a model that was named.
    """
    (found,) = report.sources
    how = f", of the shape '{found.shape}'" if found.shape is not None else ", read by 'columns'" if found.good else ", of no known shape"
    if found.shape is None and found.reasons["image_bytes"]:  # their shape is looked for once there is a folder for the pictures
        how = ""
    lines = [f"{found.path}: {found.rows} rows{how}"]
    lines.append(f"good: {found.good}, their gold answers are right by the parser that training uses")
    if counted and found.good:
        lines.append(f"longest prompt: {found.longest_prompt} tokens")
    left = sum(found.reasons.values())
    if left:
        lines.append(f"left out: {left}")
    return [*lines, *_reasons(found.reasons, found.firsts)]


def _reasons(reasons: Mapping[str, int], firsts: Mapping[str, str]) -> list[str]:
    out: list[str] = []
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        out.append(f"  {count} {reason}" + (f", first: {firsts[reason].replace(f' {reason}:', '', 1)}" if reason in firsts else ""))
    return out
