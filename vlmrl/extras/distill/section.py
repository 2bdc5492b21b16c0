"""What a recipe says of a stage of kind `distill`: everything of `grpo`, and a teacher."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vlmrl.config.section import Method, PositiveInt, RewardMethod, Section, default
from vlmrl.config.stages import GrpoSection

SAMPLED, WHOLE = "teacher_reverse_kl", "teacher_jsd"
"""The methods that ask the teacher: for the sampled tokens alone, and for the whole vocabulary."""
START, OFF = "start", "adapter_off"
"""Teachers that are in memory already."""


class TeacherMediaSection(Section):
    """How the teacher sees the media. What is left out is as the run's `media` says."""

    min_pixels: PositiveInt | None = Field(default=None, description="Least pixels of an image or frame; none: the run's")
    max_pixels: PositiveInt | None = Field(default=None, description="Most pixels of an image or frame; none: the run's")
    video_total_pixels: PositiveInt | None = Field(default=None, description="Most pixels of all frames together; none: the run's")
    fps: float | None = Field(default=None, gt=0, description="Frames per second; none: the run's")
    min_frames: PositiveInt | None = Field(default=None, description="Fewest frames of a video; none: the run's")
    max_frames: PositiveInt | None = Field(default=None, description="Most frames of a video; none: the run's")


class TeacherSection(Section):
    """Who scores the answers of the policy, and what it sees."""

    weights: str = Field(
        default=START,
        description="start: the weights that the stage starts from, frozen; adapter_off: the same under the adapters of model.lora; else a "
        "model, folder or hub id, with the same tokenizer",
    )
    media: TeacherMediaSection = TeacherMediaSection()
    hint: str | None = Field(
        default=None, description="What of a row the teacher is told behind the question: answer, thought, or meta.<name>; none: nothing"
    )

    @property
    def frozen(self) -> bool:
        """Whether the teacher is in memory already: it is what the stage starts from."""
        return self.weights in (START, OFF)

    @property
    def sees_more(self) -> bool:
        """Whether it sees anything else than the policy."""
        return self.hint is not None or self.media != TeacherMediaSection()

    def problems(self) -> list[str]:
        """What is wrong with the section by itself."""
        known = self.hint in (None, "answer", "thought") or (str(self.hint).startswith("meta.") and len(str(self.hint)) > len("meta."))
        return [] if known else [f"teacher.hint '{self.hint}': expected answer, thought or meta.<name>"]


class DistillSection(GrpoSection):
    """On-policy distillation: a teacher scores the answers that the policy has sampled. Rewards may stand beside it."""

    kind: Literal["distill"]  # pyright: ignore[reportIncompatibleVariableOverride]
    teacher: TeacherSection = TeacherSection()
    rewards: tuple[RewardMethod, ...] = Field(default=(), description="Reward columns beside the teacher; by default none")
    reweight: tuple[Method, ...] = Field(
        default=(Method(name=SAMPLED),), description="Factors on advantages, in order; by default the teacher's scores take their place"
    )

    def problems(self) -> list[str]:
        # the one thing that such a stage may lack
        out = [one for one in super().problems() if one != "rewards is empty"] + self.teacher.problems()
        asked = [method.name for method in (*self.reweight, *self.auxiliary_losses) if method.name in (SAMPLED, WHOLE)]
        if not asked:
            out.append(f"teacher: nothing asks it; name {SAMPLED} under reweight or {WHOLE} under auxiliary_losses, or take kind: grpo")
        if self.environment is not None:
            out.append("environment: a teacher scores answers to the prompt of a row, not yet turns of episodes; take kind: grpo")
        if self.rollout.strategy != default("strategy"):
            name = self.rollout.strategy.name
            out.append(f"rollout.strategy '{name}': a teacher scores answers that the policy sampled by itself; take kind: grpo")
        return out
