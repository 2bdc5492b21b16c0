"""What a file of rows is read with where nobody says it: the settings that `vlmrl new` would write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmrl.config.schema import Config, SourceSection
from vlmrl.errors import ConfigError, DataError, VlmrlError
from vlmrl.evals.ask.asking import recipe_of
from vlmrl.extras.starter.found import Found, find
from vlmrl.extras.starter.look import opened
from vlmrl.extras.starter.split import PICTURES

_MEDIA = ("media_root", "media_folder")
_OWN = {"path", *_MEDIA}
"""Settings that say where these rows are, and nothing of how they are read."""


def _as_keys(text: str) -> str:
    """Name keys of the source in place of options of `vlmrl new`."""
    text = text.replace("--task boxes", "answer_type=bbox").replace("--task clicks", "answer_type=point")
    return re.sub(r"--(answer-type|columns|media-root|turns) ", lambda option: option[1].replace("-", "_") + "=", text)


def source_of(
    path: str, given: Mapping[str, Any], *, media_root: Path | None, like: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Find the settings of a source.

    Args:
        path: the rows.
        given: settings that stand as they are.
        media_root: folder of the media, if it is given.
        like: settings of other rows, for example of those that a model was trained on; taken if these rows can be read with them.

    Returns:
        The settings, `given` included, without the path; and a line for each that was found, with what was seen. Pictures that stand in
        the rows are written to `pictures` in the folder of their media.

    Raises:
        ConfigError: the rows leave a choice; names the settings that decide it.
        DataError: rows cannot be read.
    """
    own = {key: value for key, value in given.items() if key not in _MEDIA}
    with opened(Path(path)) as look:
        root = None if look.folder is not None else media_root  # bytes need no folder to be found in

        def found_with(settings: Mapping[str, Any]) -> Found:
            return find(look, settings, media_root=root)

        try:
            try:
                found = found_with({**(like or {}), **own})
            except VlmrlError:
                if not like:
                    raise
                found = found_with(own)
        except ConfigError as error:
            raise ConfigError([_as_keys(problem) for problem in error.problems]) from error
    media = {"media_folder": PICTURES} if found.held else {}
    if found.media_dir is not None and media_root is None:
        media["media_root"] = found.media_dir.absolute().as_posix()
    told = found.told(path, media)
    asked = {"path", *given}
    lines = [_as_keys(line) for line in told if line.strip().partition(":")[0] not in asked]
    return {**found.settings, **media, **given}, lines


def looked(config: Config, media_root: Path | None) -> tuple[Config, list[str], str]:
    """Find the settings of a file of rows that is checked alone.

    Args:
        config: its recipe of one stage (`run.check_rows`).
        media_root: as `source_of`.

    Returns:
        The recipe with what was found; a line for each setting, with what was seen; and what the rows leave open, as the end of a sentence.
        Of rows that cannot be read at all there is neither: the audit tells why.
    """
    (stage,) = config.stages
    given = {key: getattr(stage.source, key) for key in stage.source.model_fields_set if key != "path"}
    try:
        found, lines = source_of(stage.source.path, given, media_root=media_root)
    except ConfigError as error:
        return config, [], "; ".join(["", *error.problems])
    except DataError:
        return config, [], ""
    source = SourceSection.model_validate({**found, "path": stage.source.path})
    return config.model_copy(update={"stages": [stage.model_copy(update={"source": source})]}), lines, ""


def source_of_model(source: SourceSection, checkpoint: Path, media_root: Path | None, error: DataError) -> tuple[dict[str, Any], list[str]]:
    """Find the settings of rows that a checkpoint is asked: as those of the rows that it was trained on, else as they are themselves.

    Args:
        source: the rows, with what the command line says of them.
        error: why they cannot be read with that alone; raised where nothing is found.

    Returns:
        As `source_of`.

    Raises:
        ConfigError: the rows leave a choice.
        DataError: they cannot be read.
    """
    given = {key: getattr(source, key) for key in source.model_fields_set if key != "path"}
    try:
        return source_of(source.path, given, media_root=media_root, like=_trained_on(checkpoint))
    except DataError:
        raise error from None


def _trained_on(checkpoint: Path) -> dict[str, Any]:
    """How the rows of a run's last stage are read; empty where no run is beside the checkpoint."""
    from vlmrl.config.load import load

    recipe = recipe_of(checkpoint)
    if recipe is None:
        return {}
    said = load(recipe, []).config.stages[-1].source
    return {key: value for key in SourceSection.model_fields if key not in _OWN and (value := getattr(said, key)) is not None}
