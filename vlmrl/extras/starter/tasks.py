"""Tables of what a recipe says for a kind of answers, and of the tasks that there is a starter for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Medium = Literal["image", "screen", "video"]

FORMAT = "{name: format, weight: 0.1}  # <think>...</think><answer>...</answer>"
MEDIA: dict[Medium, tuple[str, ...]] = {
    "image": ("max_pixels: 501760               # of a picture",),
    "screen": ("max_pixels: 1048576              # of a picture; small controls need large screenshots",),
    "video": (
        "fps: 2.0                         # frames per second that the model sees",
        "max_frames: 64",
        "video_total_pixels: 2800000      # of all frames of a video together; long videos get smaller frames",
    ),
}
"""Lines of the recipe's section `media`."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a recipe says for answers of one kind."""

    about: str
    """First line of the recipe."""
    answer_type: str | None
    """None: the rows say it, each its own."""
    rewards: tuple[str, ...]
    """Entries of `rewards` in YAML, the first of them the measure of the answer."""
    new_tokens: int = 512


KINDS: dict[str, Kind] = {
    "choice": Kind(
        about="Questions with lettered options. Answers are letters, paid when they are right.",
        answer_type="choice",
        rewards=("{name: choice}             # 1 for the right option, by its letter or its text", FORMAT),
        new_tokens=1024,
    ),
    "math": Kind(
        about="Mathematics with pictures. Answers are numbers or expressions, compared symbolically with the true one.",
        answer_type="math",
        rewards=("{name: math}               # 1 where the answer equals the true one as an expression", FORMAT),
        new_tokens=2048,
    ),
    "number": Kind(
        about="Questions whose answer is one number, paid when it equals the true one to two decimals.",
        answer_type="number",
        rewards=("{name: accuracy}           # also number: paid by how near the number is", FORMAT),
        new_tokens=1024,
    ),
    "exact_text": Kind(
        about="Questions whose answer is a word or a few, paid when it equals the true one; case and white space do not count.",
        answer_type="exact_text",
        rewards=("{name: exact}              # also ocr_wer for texts that are read, paid by the words that are right", FORMAT),
    ),
    "open_text": Kind(
        about="Questions whose answer is a text of some length, paid by the words that it shares with the true one.",
        answer_type="exact_text",
        rewards=("{name: open_rouge}         # ROUGE of the answer; a judge is asked with docs/judges.md", FORMAT),
        new_tokens=1024,
    ),
    "bbox": Kind(
        about="Where is it? Answers are boxes in a picture, paid by their overlap with the true boxes.",
        answer_type="bbox",
        rewards=("{name: box_iou}            # also giou and ciou, which tell two misses apart", FORMAT),
    ),
    "point": Kind(
        about="Where is it? Answers are points in a picture, paid when they are near a true point.",
        answer_type="point",
        rewards=("{name: click}              # 1 near the true point; rule: soft pays for being almost there", FORMAT),
    ),
    "click": Kind(
        about="Clicks on screens. Answers are points, paid when they lie in the box of the element.",
        answer_type="point",
        rewards=("{name: point_in_box}       # 1 inside the true box, border included", FORMAT),
    ),
    "time_span": Kind(
        about="Temporal grounding: when does it happen? Answers are spans in seconds, paid by their overlap with the true span.",
        answer_type="time_span",
        rewards=("{name: temporal_iou}       # overlap of the two spans over their union", FORMAT),
    ),
    "action": Kind(
        about="Steps on screens: which action comes next? Paid by the form of the action, its type, and where it points or what it types.",
        answer_type="action",
        rewards=("{name: gui_action, profile: exact}   # also os_atlas, gui_r1, ui_r1, ton: the rules of these papers",),
    ),
    "distill": Kind(
        about="Fewer frames, the same answers: a teacher that sees all frames scores the model's own answers; gold ones are not used.",
        answer_type="choice",
        rewards=(),
    ),
    "mixed": Kind(
        about="Questions with answers of several kinds, each paid by the measure of its answer type.",
        answer_type=None,
        rewards=("{name: accuracy}           # judges each row by the measure of its answer type", FORMAT),
        new_tokens=1024,
    ),
}
"""What answers are -> what the recipe says."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A starter: a kind of answers, what they are about, and a row that shows how to write them."""

    kind: str
    medium: Medium
    row: tuple[str, ...]
    """One JSON object, in lines."""
    prompt_tokens: int = 8192
    form: str = "recipe.yaml"
    """File beside this one that is filled in."""


TASKS: dict[str, Task] = {
    "boxes": Task(
        kind="bbox",
        medium="image",
        row=(
            '{"id": "a1", "task": "boxes", "answer_type": "bbox", "image": "a.png", "prompt": "Where is the dog?",',
            ' "gt": {"boxes": [[120, 340, 480, 910]]}, "meta": {"frame": "norm1000"}}',
        ),
    ),
    "clicks": Task(
        kind="click",
        medium="screen",
        row=(
            '{"id": "a1", "task": "clicks", "answer_type": "point", "image": "a.png", "prompt": "Click on OK.", "answer": "[512, 80]",',
            ' "gt": {"boxes": [[490, 60, 534, 100]]}, "meta": {"frame": "norm1000"}}',
        ),
    ),
    "distill": Task(
        kind="distill",
        medium="video",
        row=(
            '{"id": "a1", "task": "video_qa", "answer_type": "choice", "video": "a.mp4",',
            ' "prompt": "What does he pick up?\\nA. a cup\\nB. a book", "answer": "B"}',
        ),
        form="distill.yaml",
    ),
    "grounding": Task(
        kind="time_span",
        medium="video",
        row=(
            '{"id": "a1", "task": "temporal_grounding", "answer_type": "time_span", "video": "a.mp4", "prompt": "When does she sit down?",',
            ' "gt": {"time": [3.2, 7.9]}}',
        ),
    ),
    "gui": Task(
        kind="action",
        medium="screen",
        row=(
            '{"id": "a1", "task": "gui", "answer_type": "action", "image": "a.png", "prompt": "Open the settings.",',
            ' "answer": "{\\"type\\": \\"click\\", \\"point\\": [512, 80]}", "gt": {"action": {"type": "click", "point": [512, 80]}},',
            ' "meta": {"frame": "norm1000"}}',
        ),
    ),
    "maths": Task(
        kind="math",
        medium="image",
        row=(
            '{"id": "a1", "task": "maths", "answer_type": "math", "image": "a.png", "prompt": "How long is AB?", "answer": "2\\\\sqrt{3}"}',
        ),
        prompt_tokens=4096,
    ),
    "points": Task(
        kind="point",
        medium="image",
        row=(
            '{"id": "a1", "task": "points", "answer_type": "point", "image": "a.png", "prompt": "Point to the cup.",',
            ' "answer": "[512, 80]", "gt": {"points": [[512, 80]]}, "meta": {"frame": "norm1000"}}',
        ),
    ),
    "video_qa": Task(
        kind="choice",
        medium="video",
        row=(
            '{"id": "a1", "task": "video_qa", "answer_type": "choice", "video": "a.mp4",',
            ' "prompt": "What does he pick up?\\nA. a cup\\nB. a book", "answer": "B"}',
        ),
    ),
}
"""Name of a starter -> what it is."""
