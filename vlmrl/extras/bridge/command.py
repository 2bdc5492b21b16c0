"""Builds a model from the `--model_args` of lmms-eval's command line (`--model vlmrl`).

python -m lmms_eval --model vlmrl --model_args pretrained=runs/x/final,max_pixels=200704 --tasks ... --include_path ...
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vlmrl.answers.tags import FREE
from vlmrl.config.schema import MediaSection
from vlmrl.data.encode import ANSWER_FORMATS
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.models import LocalModel
from vlmrl.extras.bridge.model import VlmrlBridge
from vlmrl.extras.bridge.options import Options, View


class VlmrlModel(VlmrlBridge):
    """A checkpoint of ours, loaded from its folder."""

    def __init__(
        self,
        pretrained: str,
        *,
        answer_format: str = FREE,
        view: View = "answer",
        device: str = "auto",
        dtype: str = "float32",
        attention: str = "sdpa",
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        max_prompt_tokens: int = 8192,
        choice_tasks: str = "",
        raw: str = "",
        seed: int = 0,
        **media: Any,
    ):
        """Options as in `options.Options`, the rest as `vlmrl eval` has them.

        Args:
            pretrained: model folder, or the directory of a finished run.
            batch_size: prompts generated for at a time (`--batch_size`); `auto` is 32.
            max_batch_size: upstream hands it over; it has no meaning here.
            choice_tasks: names of multiple-choice tasks, separated by `+`.
            raw: file that the raw answers are added to, as JSON lines; upstream's own sample files hold what scorers were given.
            media: `max_pixels`, `fps` and the other keys of a recipe's `media`.

        Raises:
            ConfigError: an argument is unknown or out of range, or there is no model.
        """
        if answer_format not in (FREE, *ANSWER_FORMATS):
            raise ConfigError(f"model_args answer_format={answer_format}: known are {', '.join((FREE, *ANSWER_FORMATS))}")
        if view not in ("answer", "raw"):
            raise ConfigError(f"model_args view={view}: known are answer and raw")
        unknown = sorted(set(media) - set(MediaSection.model_fields))
        if unknown:
            raise ConfigError(f"model_args {unknown[0]}: unknown; media settings are {', '.join(MediaSection.model_fields)}")
        try:
            section = MediaSection(**media)
        except ValueError as error:  # pydantic's ValidationError
            raise ConfigError(f"model_args: {error}") from error
        model = LocalModel.load(Path(pretrained), device=device, dtype=dtype, attention=attention)
        options = Options(
            media=section,
            max_prompt_tokens=max_prompt_tokens,
            answer_format=answer_format,
            view=view,
            choice_tasks=tuple(name for name in choice_tasks.split("+") if name),
            batch_prompts=_batch(batch_size),
            seed=seed,
        )
        super().__init__(model, fingerprint=model.fingerprint, options=options, raw=Path(raw) if raw else None)


def _batch(given: int | str) -> int:
    text = str(given)
    if text.startswith("auto"):
        return Options.batch_prompts
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"batch_size {given!r}: must be a number from 1, or auto")
    return int(text)
