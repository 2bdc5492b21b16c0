"""What a recipe says of stages with a teacher: `distill` has everything of `grpo`, `teacher_sft` what answers need."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vlmrl.config.section import Method, PositiveInt, RewardMethod, Section, default
from vlmrl.config.stages import GrpoSection, RolloutStage, VllmSection

SAMPLED, WHOLE, LIKELIEST = "teacher_reverse_kl", "teacher_jsd", "teacher_topk_kl"
"""The methods that ask the teacher: for the sampled tokens alone, the whole vocabulary, and the ids that the policy finds likeliest."""
START, OFF, AVERAGE = "start", "adapter_off", "average"
"""Teachers that are made of what the stage starts from."""
SERVER = "server"
"""A teacher whose weights are not in this process."""


class AverageSection(Section):
    """How a teacher follows the policy, with `teacher.weights: average`."""

    every: PositiveInt = Field(default=10, description="Updates of the policy from one move to the next")
    decay: float = Field(default=0.995, ge=0, lt=1, description="What a move keeps of the average; the rest is the policy's")


class TeacherMediaSection(Section):
    """How the teacher sees the media. What is left out is as the run's `media` says."""

    min_pixels: PositiveInt | None = Field(default=None, description="Least pixels of an image or frame; none: the run's")
    max_pixels: PositiveInt | None = Field(default=None, description="Most pixels of an image or frame; none: the run's")
    video_total_pixels: PositiveInt | None = Field(default=None, description="Most pixels of all frames together; none: the run's")
    fps: float | None = Field(default=None, gt=0, description="Frames per second; none: the run's")
    min_frames: PositiveInt | None = Field(default=None, description="Fewest frames of a video; none: the run's")
    max_frames: PositiveInt | None = Field(default=None, description="Most frames of a video; none: the run's")
    crop: str | None = Field(
        default=None,
        description="Where a row has the box of the part that the teacher sees: meta.<name>, x1, y1, x2, y2 as shares of width and height; "
        "none: it sees the whole",
    )
    margin: float = Field(
        default=0.25, ge=0, allow_inf_nan=False, description="What a box is widened by at each end, in shares of its side"
    )
    beside: bool = Field(default=False, description="Whether the teacher sees the whole, and the crop behind it")

    @property
    def resizes(self) -> bool:
        """Whether a picture may have another size than the run's `media` gives it."""
        return self.min_pixels is not None or self.max_pixels is not None or self.video_total_pixels is not None


class TeacherSection(Section):
    """Who scores the answers of the policy, and what it sees."""

    weights: str = Field(
        default=START,
        description="start: the weights that the stage starts from, frozen; adapter_off: the same under the adapters of model.lora; "
        "average: a running average of the policy, which begins there; server: on `servers`; else a model, folder or hub id, with the same "
        "tokenizer",
    )
    servers: tuple[str, ...] = Field(default=(), description="HOST:PORT of each `vlmrl serve --teacher`, with weights: server")
    token_file: str | None = Field(default=None, description="File with the token of the servers, readable by its owner alone")
    patience: float = Field(default=600.0, gt=0, description="Seconds without any server after which the run ends with exit code 69")
    average: AverageSection = AverageSection()
    media: TeacherMediaSection = TeacherMediaSection()
    hint: str | None = Field(
        default=None, description="What of a row the teacher is told behind the question: answer, thought, or meta.<name>; none: nothing"
    )

    @property
    def at_hand(self) -> bool:
        """Whether the teacher is made of what the stage starts from, and nothing else has to be loaded."""
        return self.weights in (START, OFF, AVERAGE)

    @property
    def served(self) -> bool:
        """Whether its weights are on servers."""
        return self.weights == SERVER

    @property
    def moves(self) -> bool:
        """Whether its weights follow the policy's."""
        return self.weights == AVERAGE

    @property
    def sees_more(self) -> bool:
        """Whether it sees anything else than the policy."""
        return self.hint is not None or self.media != TeacherMediaSection()

    def problems(self) -> list[str]:
        """What is wrong with the section by itself."""
        known = self.hint in (None, "answer", "thought") or (str(self.hint).startswith("meta.") and len(str(self.hint)) > len("meta."))
        out = [] if known else [f"teacher.hint '{self.hint}': expected answer, thought or meta.<name>"]
        media, apart = self.media, TeacherMediaSection()
        if media.crop is not None and not (media.crop.startswith("meta.") and len(media.crop) > len("meta.")):
            out.append(f"teacher.media.crop '{media.crop}': expected meta.<name>, where each row has the box")
        if media.crop is None and (media.margin, media.beside) != (apart.margin, apart.beside):
            out.append("teacher.media.margin and beside are of a crop; say with teacher.media.crop where rows have its box: meta.<name>")
        if self.average != AverageSection() and not self.moves:
            out.append(
                f"teacher.average is of a teacher that follows the policy, and teacher.weights is '{self.weights}'; set it to average"
            )
        if self.served != bool(self.servers):
            out.append("teacher.servers and teacher.weights: server go together; give both, or neither")
        # the same rules as for servers that generate
        listed = VllmSection(servers=self.servers, token_file=self.token_file).problems()
        return out + [problem.replace("rollout.vllm.", "teacher.") for problem in listed]


def _alone(stage: RolloutStage) -> list[str]:
    """What may not have a part in an answer beside who gives it."""
    out: list[str] = []
    if stage.rollout.strategy != default("strategy"):
        name = stage.rollout.strategy.name
        out.append(f"rollout.strategy '{name}': a teacher scores answers that the policy sampled by itself; take kind: grpo")
    return out


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
        asked = [method.name for method in (*self.reweight, *self.auxiliary_losses) if method.name in (SAMPLED, WHOLE, LIKELIEST)]
        if not asked:
            out.append(f"teacher: nothing asks it; name {SAMPLED} under reweight or {WHOLE} under auxiliary_losses, or take kind: grpo")
        if self.teacher.served and WHOLE in asked:
            out.append(
                f"auxiliary_losses '{WHOLE}' compares whole distributions, which teacher.weights: server does not send; take {LIKELIEST}, "
                "or give the model's folder to teacher.weights"
            )
        if self.environment is not None and self.teacher.media.crop is not None:
            out.append("teacher.media.crop is of rows that have boxes, and screens of an environment have none; leave it out")
        return out + _alone(self)


class Imitate(RolloutStage):
    """Supervised fine-tuning on answers that the teacher gives, in place of those of the rows."""

    kind: Literal["teacher_sft"]
    teacher: TeacherSection = TeacherSection()
    rewards: tuple[RewardMethod, ...] = Field(default=(), description="None: answers of a teacher are learnt as they are")

    def problems(self) -> list[str]:
        out = [one for one in super().problems() if one != "rewards is empty"] + self.teacher.problems()
        if self.rewards:
            out.append("rewards: nothing scores answers of a teacher; remove them, or take kind: distill")
        if self.environment is not None:
            out.append("environment: a teacher gives answers to the prompt of a row, and plays no episodes; take kind: distill")
        if self.teacher.moves:
            out.append("teacher.weights: average: a policy that learns from answers of its own average stays where it is; take start")
        if self.teacher.served:
            out.append("teacher.weights: server: it scores answers and gives none; take start, or the folder of a model")
        if self.rollout.engine != "hf" or self.rollout.top_p != 1:
            out.append("rollout: the teacher answers in this process with its whole distribution; take engine: hf and top_p: 1")
        if self.rollout.router_replay:
            out.append("rollout.router_replay: experts that a teacher took say nothing of the policy's; take it out")
        return out + _alone(self)


Taught = DistillSection | Imitate
"""The stages that have a teacher."""
