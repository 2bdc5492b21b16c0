"""The data types of the package (Sample, Prompt, Rollout, Group, Scores). Read this file first.

Frozen, keyword-only, without tensors (those appear in `policy.pack`), so that any of them can be compared, hashed into a
journal and rebuilt. Letters used in names everywhere: N rollouts in a step, P prompts, G rollouts of one prompt, K reward
columns, B rows of a micro-batch, T tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

MediaKind = Literal["image", "video"]
Provenance = Literal["policy", "ground_truth", "guided", "replay"]
FinishReason = Literal["stop", "length"]
TrainedUnder = Literal["plain", "guided"]
OldFrom = Literal["policy", "sampler"]
Part = Literal["vision", "projector", "language"]
PARTS: tuple[Part, ...] = get_args(Part)
"""Parts of a model: the vision tower without its mergers, the mergers, and the decoder with embeddings and head."""
CoordinateFrame = Literal["pixel", "norm1", "norm1000"]
"""What points and boxes count: pixels of the picture as it is shown, shares of its sides (0 to 1), or thousandths of them (0 to 1000)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaRef:
    """Reference to one medium: where it lies. A string that names media is not permission to read it: see `media.access`."""

    kind: MediaKind
    path: str
    """Relative to the media root of its source; never absolute, never with `..`. Of a video given as frames: their folder, or the first."""
    sha256: str | None = None
    """Expected content hash, where the row gives one."""
    frames: tuple[MediaRef, ...] = ()
    """A video given as a list of pictures: these, in order. `path` is then that of the first, a name for messages."""
    times: tuple[float, ...] | None = None
    """A video given as frames: when each comes on screen, in seconds from the first; or `fps`."""
    fps: float | None = None

    @property
    def as_frames(self) -> bool:
        """Whether this is a video given as pictures: `frames`, or those in the folder `path`."""
        return self.times is not None or self.fps is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """An earlier exchange of a conversation: context that stands before the question, never scored and never trained on."""

    question: str
    answer: str
    media: int = 0
    """How many of the sample's media it shows: the next ones in their order. The question shows the rest."""
    question_first: bool = False
    """Whether they come after its question."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One row of data, validated. Its id is unique in the mixture and is the key of the ledger."""

    id: str
    task: str
    """Task key (`temporal_grounding`, ...): G2RPO ranks, envelopes and reports go by it."""
    answer_type: str
    """`time_span`, `bbox`, `choice`, `number`, ...: says how the answer is parsed and scored."""
    question: str
    """The text of the question, without media placeholders and without format instructions."""
    media: tuple[MediaRef, ...]
    """In the order in which they are shown."""
    answer: str
    """The gold answer as the model should write it between the answer tags, for example `3.0 to 5.0`."""
    gt: Mapping[str, Any]
    """The gold answer for scoring, for example `{"time": [3.0, 5.0]}`."""
    thought: str | None = None
    """A reference thought for supervised fine-tuning, if the row has one."""
    question_first: bool = False
    """Whether the media come after the question (their placeholders stand at the end of the row's prompt)."""
    history: tuple[Turn, ...] = ()
    """Earlier turns of the conversation, shown before the question."""
    source: str = ""
    """`file:line` that the row came from, for messages."""
    media_root: str = ""
    """Folder that the media paths are relative to. Not part of the row's identity."""
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def asked(self) -> str:
        """The question with the turns before it, for a reader; the question itself where there are none."""
        before = "".join(f"{turn.question}\n-> {turn.answer}\n" for turn in self.history)
        return before + self.question


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaHandle:
    """One processed medium of a prompt. The pixels are in the `MediaStore` under `key`; nothing else may decode the file."""

    kind: MediaKind
    key: str
    """Hash of the file's content and of every processing parameter."""
    grid_thw: tuple[int, int, int]
    """Patches in time, height, width, before spatial merging; frames and pixels where the family's own processor cuts them."""
    tokens: int
    """Placeholder tokens: t * h * w / merge_size**2, or what the family's own processor makes of it."""
    seconds_per_grid: float | None = None
    """Video: seconds between two temporal steps of the grid (M-RoPE needs it)."""
    step_times: tuple[float, ...] | None = None
    """Video, for a model that reads the time as text (Qwen3-VL): seconds from the first frame of the file for each temporal step,
    the mean of when its first and its last frame come on screen. Each step then has a span of its own in the prompt."""
    # no part of equality: headers and packets may disagree about a medium that is the same
    duration: float | None = field(default=None, compare=False)
    """Video: seconds, as its headers say (when planned) or its packets (when decoded)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A sample as token ids. Made only by `data.encode`; nothing is ever re-tokenised from text."""

    sample: Sample
    ids: tuple[int, ...]
    media: tuple[MediaHandle, ...]
    spans: tuple[tuple[int, int], ...]
    """Half-open token ranges of placeholders, ascending: one per medium, or one per temporal step of a medium with `step_times`.
    The spans of a medium hold its `tokens` together, in the order of its features; `policy.pack.visual_index` pairs them."""
    answer_format: str
    """Name of the answer format that the prompt asks for."""
    owners: tuple[int, ...] = ()
    """For each span the index in `media` of the medium that it shows. Empty: every medium has one span."""
    kinds: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """What kind of token stands in each column, by the name of the model's argument, where its own processor says so."""

    def inputs(self) -> dict[str, Any]:
        """Collect what an answer and its rewards depend on beside the weights: the `media` (keys of content and processing), and hashes of
        the `question`, of the `prompt` (its token ids) and of the `gold` (what else a reward may read). JSON values, to be kept with what
        was sampled.
        """
        return {
            "media": [handle.key for handle in self.media],
            "question": digest(self.sample.question),
            "prompt": digest(list(self.ids)),
            "gold": digest(gold_of(self.sample)),
        }


def gold_of(sample: Sample) -> list[Any]:
    """Collect what a row says about its answer: everything of it but the question and the media."""
    # the question and the media are compared by entries of their own (`Prompt.inputs`)
    return [sample.task, sample.answer_type, sample.answer, sample.gt, sample.thought, sample.meta]


def digest(value: Any) -> str:
    """Hash a JSON value, in hexadecimal; mappings of any type count as objects."""
    # one spelling of a value: hashes are compared between processes and runs
    text = json.dumps(value, sort_keys=True, default=dict, separators=(",", ":"))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Guidance:
    """The hint that a guided rollout was sampled under, in place of its group's question, and how the rollout trains."""

    question: str
    """Question text with the hint. With the sample's media and the group's answer format it gives the prompt's ids again."""
    tier: int
    """Number of the hint, from 1: the higher, the more it says."""
    train: TrainedUnder = "guided"
    """Prompt that the loss conditions on."""
    old: OldFrom = "policy"
    """Denominator of the ratio: the policy before the update under the training prompt, or what the sampler reported under the hint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """One answer. `ids` are exactly what was sampled, end token included."""

    k: int
    """Its number within the group; part of its random seed."""
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural log-probability of each token under the distribution that it was drawn from (temperature and top-p applied).
    Empty for rows that were not sampled (`ground_truth`): their log-probs are recomputed under the policy."""
    text: str
    finish: FinishReason
    policy_version: int
    provenance: Provenance = "policy"
    guidance: Guidance | None = None
    """Set for `guided` rows and for no others."""
    routes: tuple[str, ...] = ()
    """Experts that the columns of its prompt took, and those of the answer, as `families.routing` writes them; none: not kept."""

    def __post_init__(self) -> None:
        # importance weights and replay pair them by place: one too few would shift all behind it
        if self.provenance != "ground_truth" and len(self.logprobs) != len(self.ids):
            raise ValueError(f"rollout {self.k}: {len(self.ids)} ids but {len(self.logprobs)} log-probs")
        if (self.provenance == "guided") != (self.guidance is not None):
            raise ValueError(f"rollout {self.k}: provenance '{self.provenance}' with guidance {self.guidance}; only guided rows have one")

    @property
    def on_policy(self) -> bool:
        return self.provenance == "policy"

    @property
    def old_from_sampler(self) -> bool:
        """Whether `logprobs` are the denominator of the ratio; else it is the policy before the update, under the training prompt."""
        return self.provenance == "replay" or (self.guidance is not None and self.guidance.old == "sampler")


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnRollout(Rollout):
    """One turn of an attempt at a task. `k` numbers the turns of the group, attempt after attempt."""

    attempt: int
    """Number of the attempt within the group."""
    turn: int
    """From 0."""
    state: str
    """Equal texts are equal states of the environment."""
    reward: float
    """What the environment gave for it."""
    prompt: Prompt
    """What the sampler saw: the past that the policy of history left in. The same object for turns of the group that saw the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """One prompt with its rollouts: the unit of the journal, of scoring and of selection. With an environment, one task with the turns
    of all whole attempts at it."""

    id: str
    prompt: Prompt
    rollouts: tuple[Rollout, ...]
    guided: tuple[Prompt, ...] = ()
    """The prompts with hints that guided rows were sampled under, each once."""

    def sampled_under(self, rollout: Rollout) -> Prompt:
        """Find the prompt that the sampler saw.

        Raises:
            ValueError: the row's prompt with a hint is not among `guided`.
        """
        if isinstance(rollout, TurnRollout):
            return rollout.prompt
        if rollout.guidance is None:
            return self.prompt
        for prompt in self.guided:
            if prompt.sample.question == rollout.guidance.question:
                return prompt
        raise ValueError(f"group '{self.id}': rollout {rollout.k} is guided, but its prompt with the hint is not among the group's")

    def trained_under(self, rollout: Rollout) -> Prompt:
        """Find the prompt that the loss conditions on: the group's own, or the one with the hint. One object for all rows that share it.

        Raises:
            ValueError: see `sampled_under`.
        """
        guided = rollout.guidance is not None and rollout.guidance.train == "guided"
        return self.sampled_under(rollout) if guided or isinstance(rollout, TurnRollout) else self.prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Rewards of one group."""

    columns: tuple[str, ...]
    """Names of the K reward columns."""
    weights: tuple[float, ...]
    rewards_GK: tuple[tuple[float | None, ...], ...]
    """None where the reward could not judge or failed; the reason is in `reasons`."""
    reasons: Mapping[str, int] = field(default_factory=dict[str, int])
    """`column/reason` -> how many rollouts; nothing that failed is silently a zero."""

    def total(self) -> list[float | None]:
        """Sum the finite columns of each rollout by their weights; None where no column judged it."""
        out: list[float | None] = []
        for row in self.rewards_GK:
            judged = [w * r for w, r in zip(self.weights, row, strict=True) if r is not None]
            # None and not 0: what nothing judged is no failure, and must enter no mean
            out.append(sum(judged) if judged else None)
        return out


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredGroup:
    """A group with its scores."""

    group: Group
    scores: Scores
    unguided: tuple[tuple[float | None, int], ...] | None = None
    """(total reward, tokens) of every row that was sampled without a hint, where some of them gave way to guided ones."""

    def outcomes(self) -> list[tuple[float | None, int]]:
        """List (total reward, tokens) of what the policy did without help: for the ledger and for logged statistics. Of turns those of each
        attempt, summed; None where nothing judged a turn.
        """
        if self.unguided is not None:  # guided rows took the place of some: the group no longer shows what the policy can do
            return list(self.unguided)
        out: dict[tuple[int, ...], tuple[float | None, int]] = {}
        for n, (value, rollout) in enumerate(zip(self.scores.total(), self.group.rollouts, strict=True)):
            if rollout.on_policy:
                # turns of an attempt share a key; an answer has one of its own
                one = (rollout.attempt,) if isinstance(rollout, TurnRollout) else (-1, n)
                before, tokens = out.get(one, (0.0, 0))
                # an attempt with a turn that nothing judged has no reward: what is left of the sum would pass for all of it
                out[one] = (None if value is None or before is None else before + value, tokens + len(rollout.ids))
        return list(out.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class HintRequest:
    """A request for rollouts of a group's prompt under another question.

    No two of a group have the same (tier, writes): they are coordinates of the seeds.
    """

    question: str
    """Stands in for the sample's question; the media stay."""
    tier: int
    rows: int
    """Rollouts to sample."""
    writes: bool = False
    """The rollouts are text to read (a hint that the policy writes), asked for without an answer format and never scored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HintRound:
    """The answer to a `HintRequest`: what was sampled and what it earned, or why nothing was."""

    request: HintRequest
    rollouts: tuple[Rollout, ...] = ()
    """Guided rows, or the texts of a request that `writes`."""
    rewards: tuple[float | None, ...] = ()
    """Total of each row; empty for texts."""
    prompt: Prompt | None = None
    """What guided rows were sampled under; None for texts."""
    problem: str | None = None
    """Why the prompt could not be made (`overlong`, `control_token`, ...); there are no rollouts then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPrompt:
    """One entry of a sampler's plan: the next prompt is of this sample."""

    sample_id: str
    num_generations: int
    """Rollouts of its group."""
    epoch: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One prompt to generate for. Seeds are per rollout, so that the answer does not depend on what else is in the batch."""

    prompt: Prompt
    seeds: tuple[int, ...]
    """One per rollout; its length is the number of rollouts. See `rng.key`."""
    ks: tuple[int, ...]
    expected_tokens: float = 0.0
    """Predicted length of its answers; engines may admit the longest first."""
    conversations: tuple[int, ...] = ()
    """In a session: the number of the conversation that each rollout is a turn of."""
    alike: tuple[tuple[int, ...], ...] = ()
    """In a session: the other conversations that each rollout is a turn of as well, since they have not forked yet; none: no others."""
    goes_on: bool = False
    """Whether the next turn's prompt may begin with this one and its answer."""

    def talkers(self, place: int | None = None) -> tuple[int, ...]:
        """List all conversations that the rollout in a place is a turn of; without a place those of all rollouts."""
        # until they fork, conversations share a rollout: it is made once, under the first of them
        places = range(len(self.conversations)) if place is None else (place,)
        return tuple(n for k in places for n in (self.conversations[k], *(self.alike[k] if self.alike else ())))


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationSettings:
    """Settings of sampling."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 means greedy; the reported log-probs are then those at temperature 1."""
    top_p: float = 1.0
    routes: bool = False
    """Whether rollouts keep the experts that were taken."""
