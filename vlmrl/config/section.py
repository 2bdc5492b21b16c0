"""What sections of a recipe are made of: the base models, methods with their arguments, and the sections that several others hold."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vlmrl.config.names import LogKey
from vlmrl.defaults import DEFAULTS
from vlmrl.types import PARTS, CoordinateFrame, Part

COLUMN_KEYS = (
    *("prompt", "question", "messages", "answer", "image", "images", "video", "videos", "options", "id", "task", "answer_type"),
    *("thought", "system", "source", "data_type"),
)
"""Keys that `columns` of a source may map columns to, beside `meta.<name>`; `question` is `prompt`."""
_SEVERAL = ("prompt", "question", "image", "images", "video", "videos", "options")


def column_problem(columns: Mapping[str, str | Sequence[str]]) -> str | None:
    """Find what is wrong with `columns` of a source.

    Returns:
        The problem as text, with the key that was meant; None if there is none.
    """
    for key, value in columns.items():
        if key not in COLUMN_KEYS and not (key.startswith("meta.") and len(key) > len("meta.")):
            close = difflib.get_close_matches(key, COLUMN_KEYS, n=1, cutoff=0.6)
            guess = f"; did you mean '{close[0]}'?" if close else ""
            return f"'{key}' is no key that a column can be mapped to{guess} (known: {', '.join(COLUMN_KEYS)}, meta.<name>)"
        names = [value] if isinstance(value, str) else list(value)
        if not names or not all(names):
            return f"'{key}' names no column"
        if len(names) > 1 and key not in _SEVERAL:
            return f"'{key}' is given {len(names)} columns ({', '.join(names)}); it takes one"
    for one, other in (("prompt", "question"), ("prompt", "messages"), ("question", "messages"), ("image", "images"), ("video", "videos")):
        if one in columns and other in columns:
            return f"'{one}' and '{other}' mean the same, and two columns are mapped to it; give one of them"
    if not any(key in columns for key in ("prompt", "question", "messages")):
        return f"no column is mapped to 'prompt' or 'messages' (mapped: {', '.join(columns) or 'nothing'})"
    return None


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Method(BaseModel):
    """A registered function and its arguments: `{name: my_method, scale: 2}`."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class RewardMethod(Method):
    """A reward and its weight in the sum."""

    weight: float = Field(default=1.0, ge=-1e6, le=1e6, description="Factor of this column in the weighted sum")
    label: LogKey | None = Field(
        default=None, description="Name in logs and for shapings; by default the reward's. Lets one reward (`python`) stand twice"
    )
    isolate: bool | None = Field(
        default=None, description="Run it in a worker process with a deadline; by default what is not built in, or could hang"
    )

    @property
    def key(self) -> str:
        """Name of this reward in logs, tables and shapings."""
        return self.label or self.name


def default(field: str) -> Method:
    """The method of a field that a recipe leaves out."""
    return Method(name=DEFAULTS[field])


class AuxiliaryMethod(Method):
    """A regulariser and its weight in the loss."""

    weight: float = Field(default=1.0, description="Factor of the regulariser in the loss")


PositiveInt = Annotated[int, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]


class EnvironmentMethod(Method):
    """An environment with its arguments, and how its episodes are run: `{name: my_world, size: 3, max_turns: 8}`."""

    max_turns: PositiveInt = Field(default=20, description="Most actions of an episode")
    workers: PositiveInt = Field(default=2, description="Processes that hold environments, for each rank")
    deadline: float = Field(default=20.0, gt=0, description="Seconds that a reset or a step may take; then its process is killed")
    memory: PositiveInt = Field(default=2 << 30, description="Bytes that a process may take beyond those of its imports (Linux)")
    retries: int = Field(default=2, ge=0, description="New attempts, with the same seed, at an episode that lost its environment")
    ahead: bool = Field(default=True, description="Begin worlds before they are asked for, one for all attempts that do the same")
    max_faults: Probability = Field(default=0.02, description="Largest share of faults among the episodes of 50 steps before the run stops")


class HistorySection(Section):
    """What of an episode's past stands in the prompt of a turn. Nothing given: the whole conversation."""

    screens: PositiveInt | None = Field(default=None, description="A prompt begins with the screens of so many turns; none: of all")
    every: PositiveInt = Field(default=1, description="With `screens`: turns for which a prompt grows before it begins anew")
    actions: bool = Field(default=True, description="With `screens`: tell the actions before as text where a prompt begins anew")


class SourceSection(Section):
    path: str = Field(description="JSONL or Parquet file of rows, below data.root; also folders, #N and org/name@split (docs/data.md)")
    media_root: str = Field(default=".", description="Folder that media paths are relative to, relative to data.root")
    adapter: str | None = Field(
        default=None, description="Shape of the rows (docs/data.md); none: that of the first row whose keys are known"
    )
    answer_type: str | None = Field(default=None, description="Answer type of rows of other trainers that do not say it")
    task: str | None = Field(default=None, description="Task of rows of other trainers that do not say it; none: their answer type")
    frame: CoordinateFrame | None = Field(default=None, description="Frame of their boxes and points; never guessed")
    axis: Literal["xyxy", "yxyx", "xywh"] | None = Field(default=None, description="Order of the numbers of a box; none: xyxy")
    to_frame: Literal["pixel", "norm1000"] = Field(default="norm1000", description="Frame that their boxes and points are converted to")
    time_unit: Literal["s", "ms", "mm:ss", "frames"] | None = Field(default=None, description="Unit of their bare times; never guessed")
    time_fps: float | None = Field(default=None, gt=0, description="Frames per second of time_unit: frames")
    instructions: Literal["drop", "keep"] = Field(
        default="drop", description="What to do with instructions about the answer format around their questions"
    )
    turns: Literal["first", "last", "split"] | None = Field(
        default=None, description="Rows with several turns: train on the first question, the last (the others are context), or one row each"
    )
    columns: dict[str, str | tuple[str, ...]] | None = Field(
        default=None, description="Rows of no known shape: our key -> their column, as {prompt: question, answer: output} (docs/data.md)"
    )
    media_folder: str | None = Field(
        default=None, description="Folder below media_root that pictures inside rows (bytes, base64) are written to"
    )
    frames_fps: float | None = Field(
        default=None, gt=0, le=500, description="Frames per second of videos that rows give as lists of pictures without their times"
    )

    @model_validator(mode="after")
    def _frames_need_a_rate(self) -> SourceSection:
        if (self.time_unit == "frames") != (self.time_fps is not None):
            raise ValueError("time_unit: frames and time_fps belong together; give both or neither")
        return self

    @model_validator(mode="after")
    def _columns_are_known(self) -> SourceSection:
        problem = None if self.columns is None else column_problem(self.columns)
        if problem is not None:
            raise ValueError(f"columns: {problem}")
        if self.columns is not None and self.adapter is not None:
            raise ValueError("adapter and columns each say how rows are read; give one of them")
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # a mapping has no hash of its own


class PartsSection(Section):
    """Peak learning rates of parts of the model."""

    vision: NonNegative | None = Field(default=None, description="Of the vision tower without its mergers; none: lr, 0: frozen")
    projector: NonNegative | None = Field(default=None, description="Of the mergers of the tower; none: lr, 0: frozen")
    language: NonNegative | None = Field(default=None, description="Of the decoder with embeddings and head; none: lr, 0: frozen")

    @property
    def rates(self) -> dict[Part, float]:
        """Those that are given."""
        given = {"vision": self.vision, "projector": self.projector, "language": self.language}
        return {part: rate for part in PARTS if (rate := given[part]) is not None}


class OptimSection(Section):
    kind: Literal["adamw", "adamw8bit", "muon"] = Field(
        default="adamw",
        description="adamw8bit: moments of 8 bits (bitsandbytes), 2 bytes per trained weight in place of 8; muon: orthogonal steps for the "
        "matrices inside the model, AdamW for the rest; both for ddp only",
    )
    lr: NonNegative = Field(default=1e-6, description="Peak learning rate")
    parts: PartsSection = PartsSection()
    schedule: Literal["constant", "linear", "cosine"] = Field(default="constant", description="Shape after warm-up, over the stage's steps")
    warmup: Probability = Field(default=0.0, description="Share of the stage's steps with rising learning rate")
    weight_decay: NonNegative = Field(default=0.0, description="AdamW weight decay (matrices only)")
    betas: tuple[float, float] = Field(default=(0.9, 0.999), description="AdamW betas")
    max_grad_norm: float = Field(default=1.0, gt=0, description="Gradient clipping")
