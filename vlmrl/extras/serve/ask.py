"""The command `ask`: a question about a picture or a video to a checkpoint, and its answer drawn on what the model saw."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmrl.errors import ConfigError, DataError, MediaError, RowError

if TYPE_CHECKING:
    from vlmrl.evals.ask.question import Answered, QuestionModel
    from vlmrl.types import MediaKind

PANEL = "How it is asked, if not as the checkpoint's recipe says"
_GIVEN: dict[str, Any] = {"rich_help_panel": PANEL, "show_default": False}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ask")(ask)


def ask(
    checkpoint: Annotated[Path, typer.Argument(help="Model folder such as <run>/final, or a finished run", show_default=False)],
    question: Annotated[str | None, typer.Argument(help="The question; without one they are read line by line", show_default=False)] = None,
    image: Annotated[list[Path] | None, typer.Option(help="A picture; may be repeated", show_default=False)] = None,
    video: Annotated[list[Path] | None, typer.Option(help="A video; may be repeated, shown after pictures", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(help="Write the medium with the answer drawn on it: .png, .jpg", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per answer.")] = False,
    recipe: Annotated[str | None, typer.Option(help="Recipe, instead of what the checkpoint says", **_GIVEN)] = None,
    answer_type: Annotated[str | None, typer.Option(help="time_span, bbox, point, choice, number, ...", **_GIVEN)] = None,
    answer_format: Annotated[str | None, typer.Option(help="think, answer_only or think_or_not", **_GIVEN)] = None,
    frame: Annotated[str | None, typer.Option(help="Coordinates of boxes and points: pixel, norm1, norm1000", **_GIVEN)] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest answer", min=1, **_GIVEN)] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy", min=0, rich_help_panel=PANEL)] = 0.0,
    seed: Annotated[int, typer.Option(help="Of a sampled answer", min=0, rich_help_panel=PANEL)] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16")] = "auto",
) -> None:
    """Ask a checkpoint about a picture or a video, with the pixels and the prompt that it was trained with.

    Example: vlmrl ask runs/mine/final "When does she sit down?" --video a.mp4 --out answer.png
    """
    from vlmrl.evals.ask.asking import asking_of, chosen
    from vlmrl.evals.ask.models import LocalModel, compute_dtype
    from vlmrl.evals.ask.question import QuestionModel
    from vlmrl.policy.load import quiet_transformers

    media: list[tuple[MediaKind, Path]] = [*(("image", path) for path in image or ()), *(("video", path) for path in video or ())]
    if out is not None and not media:
        raise ConfigError("--out draws on a picture or a video; give --image or --video")
    asking = chosen(
        asking_of(checkpoint, recipe), answer_type=answer_type, answer_format=answer_format, frame=frame, max_new_tokens=max_new_tokens
    )
    for note in asking.notes:
        typer.echo(note, err=True)
    quiet_transformers()
    model = LocalModel.load(checkpoint, device=device, dtype=compute_dtype(device, dtype))
    with closing(QuestionModel(model, asking)) as asker:
        for number, text in enumerate(_questions(question)):
            said = _asked(asker, text, media, temperature=temperature, seed=seed, interactive=question is None)
            if said is not None:
                _show(said, None if out is None else _numbered(out, number), as_json=as_json)


def _questions(given: str | None) -> Iterator[str]:
    """The one that was given; else lines of the standard input until it ends or a line is empty."""
    if given is not None:
        yield given
        return
    stream = typer.get_text_stream("stdin")
    if stream.isatty():
        typer.echo("a question per line; an empty one ends", err=True)
    for line in stream:
        if not line.strip():
            return
        yield line.strip()


def _asked(
    asker: QuestionModel, text: str, media: list[tuple[MediaKind, Path]], *, temperature: float, seed: int, interactive: bool
) -> Answered | None:
    """The answer. A question that cannot be asked ends the command, unless more of them come: then it is said, and None."""
    try:
        return asker.ask(text, media, temperature=temperature, seed=seed)
    except (MediaError, RowError) as error:
        if not interactive:
            raise DataError(str(error)) from error
        typer.echo(f"error: {error}", err=True)
        return None


def _numbered(out: Path, number: int) -> Path:
    """`answer.png`, then `answer-2.png`, and so on."""
    return out if number == 0 else out.with_name(f"{out.stem}-{number + 1}{out.suffix}")


def _show(said: Answered, out: Path | None, *, as_json: bool) -> None:
    problems: tuple[str, ...] = ()
    if out is not None:
        from vlmrl.evals.page import PAGES

        problems = PAGES["answer"](out, said.sample, said.shown[0], said.answer).problems
    if as_json:
        found = {"question": said.sample.question, "answer": said.answer, "thought": said.thought, "text": said.text}
        found |= {"finish": said.finish, "tokens": said.tokens, "picture": None if out is None else str(out), "not_drawn": list(problems)}
        typer.echo(json.dumps(found, ensure_ascii=True))
        return
    if said.thought is not None and said.thought.strip():
        typer.echo(f"thought: {_plain(said.thought.strip())}")
    typer.echo(f"answer: {_plain(said.answer)}" if said.answer is not None else f"no answer in: {_plain(said.text)}")
    if said.finish == "length":
        typer.echo(f"cut after {said.tokens} tokens; --max-new-tokens allows more", err=True)
    for problem in problems:
        typer.echo(problem, err=True)
    if out is not None:
        typer.echo(f"picture: {out}", err=True)


def _plain(text: str) -> str:
    """Model text without what could rewrite a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
