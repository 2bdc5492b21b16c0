"""`vlmrl serve MODEL --ask`: a question about a picture or a video to a checkpoint, and its answer drawn on what the model saw."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vlmrl.errors import ConfigError, DataError, MediaError, RowError

if TYPE_CHECKING:
    from vlmrl.evals.ask.question import Answered, QuestionModel
    from vlmrl.types import MediaKind


def answer(
    checkpoint: Path,
    question: str | None,
    media: list[tuple[MediaKind, Path]],
    recipe: str | None,
    how: Mapping[str, Any],
    out: Path | None,
    *,
    as_json: bool,
    sampling: tuple[float, int],
    device: str,
    dtype: str,
) -> None:
    """Ask a checkpoint about pictures and videos, with the pixels and the prompt that it was trained with, and print its answers.

    Args:
        question: None reads one from each line of the standard input.
        how: what is asked otherwise than the checkpoint's recipe says (`asking.chosen`).
        out: picture to write, the first medium with the answer drawn on it.
        sampling: temperature and seed.

    Raises:
        ConfigError: options that do not fit together, or a checkpoint that does not say how it is asked.
        DataError: the question cannot be asked.
    """
    from vlmrl.evals.ask.asking import asking_of, chosen
    from vlmrl.evals.ask.models import LocalModel, compute_dtype
    from vlmrl.evals.ask.question import QuestionModel
    from vlmrl.policy.load import quiet_transformers

    if out is not None and not media:
        raise ConfigError("--out draws on a picture or a video; give --image or --video")
    asking = chosen(asking_of(checkpoint, recipe), **how)
    for note in asking.notes:
        typer.echo(note, err=True)
    quiet_transformers()
    model = LocalModel.load(checkpoint, device=device, dtype=compute_dtype(device, dtype))
    temperature, seed = sampling
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
