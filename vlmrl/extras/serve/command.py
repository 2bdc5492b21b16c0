"""The command `serve`: a checkpoint behind OpenAI's protocol, by the embedded engine or by vLLM; asked here; or vLLM for runs elsewhere."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmrl.cli.names import extra, given, panel
from vlmrl.errors import ConfigError
from vlmrl.web.guard import LOOPBACK

if TYPE_CHECKING:
    from vlmrl.evals.ask.asking import Asking
    from vlmrl.types import MediaKind

ENGINES = ("hf", "vllm")
_GIVEN = panel("How it is asked, if not as the checkpoint says")
_ASK = panel("--ask: a question here, and no server")
_ROLLOUTS = panel("--rollouts, --teacher: answers and scores for runs on other devices or machines", show_default=True)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(
    ctx: typer.Context,
    model: Annotated[str | None, typer.Argument(help="Model folder such as <run>/final, or a finished run", show_default=False)] = None,
    more: Annotated[
        list[str] | None,
        typer.Argument(help="--engine vllm, --teacher, behind `--`: options of vLLM. --rollouts: KEY=VALUE", show_default=False),
    ] = None,
    engine: Annotated[str, typer.Option(help="hf: this process, for small models; vllm: its server, where it is installed")] = "hf",
    print_: Annotated[bool, typer.Option("--print", help="Of vLLM: print the line, run nothing.")] = False,
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one (hf)", min=0, max=65535)] = 8000,
    name: Annotated[str | None, typer.Option("--name", help="Name in requests; the run's by default", show_default=False)] = None,
    allow_media: Annotated[list[Path] | None, typer.Option(help="Folder whose files requests may name", show_default=False)] = None,
    key_env: Annotated[str | None, typer.Option(help="Variable with the API key; else one is made", show_default=False)] = None,
    no_key: Annotated[bool, typer.Option("--no-key", help="Ask for no API key; on this machine only.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16")] = "auto",
    recipe: Annotated[str | None, typer.Option(help="Recipe, instead of what the checkpoint says", **_GIVEN)] = None,
    answer_type: Annotated[str | None, typer.Option(help="time_span, bbox, point, choice, number, ...", **_GIVEN)] = None,
    answer_format: Annotated[str | None, typer.Option(help="think, answer_only or think_or_not", **_GIVEN)] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest answer, where a request says none", min=1, **_GIVEN)] = None,
    max_prompt_tokens: Annotated[int | None, typer.Option(help="Longest prompt", min=1, **_GIVEN)] = None,
    ask: Annotated[str | None, typer.Option(help="Serve nothing: ask this; - reads a question per line", **_ASK)] = None,
    image: Annotated[list[Path] | None, typer.Option(help="A picture; may be repeated", **_ASK)] = None,
    video: Annotated[list[Path] | None, typer.Option(help="A video; may be repeated, shown after pictures", **_ASK)] = None,
    out: Annotated[Path | None, typer.Option(help="Write the medium with the answer drawn on it: .png, .jpg", **_ASK)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per answer.", **_ASK)] = False,
    frame: Annotated[str | None, typer.Option(help="Coordinates of boxes and points: pixel, norm1, norm1000", **_ASK)] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy", min=0, **_ASK)] = 0.0,
    seed: Annotated[int, typer.Option(help="Of a sampled answer", min=0, **_ASK)] = 0,
    rollouts: Annotated[str | None, typer.Option(help="vLLM for the rollouts of runs of this recipe elsewhere", **_ROLLOUTS)] = None,
    teacher: Annotated[str | None, typer.Option(help="vLLM with this model as the teacher of runs elsewhere", **_ROLLOUTS)] = None,
    listen: Annotated[
        str, typer.Option(help="HOST:PORT; port 0 takes a free one. Another host needs a token", **_ROLLOUTS)
    ] = "127.0.0.1:7000",
    token_file: Annotated[Path | None, typer.Option(help="Token that askers must have; made if not there", **_ROLLOUTS)] = None,
    stage: Annotated[str | None, typer.Option(help="Stage whose settings count; the first with vllm", **_ROLLOUTS)] = None,
) -> None:
    """Serve a checkpoint over OpenAI's chat completions, asked as in training; or with --ask answer a question here, and end.

    Example: vlmrl serve runs/mine/final --allow-media videos
    """
    what = next((name for name, of in (("ask", ask), ("rollouts", rollouts), ("teacher", teacher)) if of is not None), "serve")
    wrong = given(ctx, (name for of, names in _OF.items() if what not in of.split() for name in names))
    if wrong:
        raise ConfigError(f"{wrong[0]}: " + ("only with --ask, --rollouts or --teacher" if what == "serve" else f"not with --{what}"))
    if rollouts is not None or teacher is not None:
        _for_runs(rollouts, teacher, (model, *(more or ())), stage, (device, dtype), listen=listen, token_file=token_file, print_=print_)
        return
    if model is None:
        raise ConfigError("which model? give its folder, such as <run>/final, or a finished run")
    how = {"answer_type": answer_type, "answer_format": answer_format, "frame": frame, "max_new_tokens": max_new_tokens}
    if ask is None:
        keys = key_env, no_key
        _serve(
            Path(model),
            more or [],
            (engine, print_),
            (host, port),
            name,
            allow_media or [],
            keys,
            (device, dtype),
            recipe,
            how,
            max_prompt_tokens,
        )
        return
    if more:
        raise ConfigError(f"{more[0]}: --ask takes one question; of several words it stands in quotes")
    from vlmrl.extras.serve.ask import answer

    media: list[tuple[MediaKind, Path]] = [*(("image", path) for path in image or ()), *(("video", path) for path in video or ())]
    asked = None if ask == "-" else ask
    answer(Path(model), asked, media, recipe, how, out, as_json=as_json, sampling=(temperature, seed), device=device, dtype=dtype)


_OF = {
    "ask serve teacher": ("device", "dtype"),
    "ask serve": ("recipe", "answer_type", "answer_format", "max_new_tokens"),
    "ask": ("image", "video", "out", "as_json", "frame", "temperature", "seed"),
    "rollouts teacher": ("listen", "token_file"),
    "rollouts": ("stage",),
    "rollouts serve teacher": ("print_",),
    "serve": ("engine", "host", "port", "name", "allow_media", "key_env", "no_key", "max_prompt_tokens"),
}
"""What is done -> parameters that are for nothing else."""


def _for_runs(
    rollouts: str | None, teacher: str | None, more: Sequence[str | None], stage: str | None, runs_on: tuple[str, str], **where: Any
) -> None:
    words = [word for word in more if word is not None]
    if teacher is None:
        extra("vlmrl.extras.vllm.command.rollout_server")(rollouts, words, stage=stage, **where)
    else:
        device, dtype = runs_on
        extra("vlmrl.extras.vllm.command.teacher_server")(teacher, words, device=device, dtype=dtype, **where)


def _serve(
    checkpoint: Path,
    more: list[str],
    by: tuple[str, bool],
    address: tuple[str, int],
    name: str | None,
    allowed: list[Path],
    keys: tuple[str | None, bool],
    runs_on: tuple[str, str],
    recipe: str | None,
    how: dict[str, Any],
    max_prompt_tokens: int | None,
) -> None:
    (engine, print_), (key_env, no_key), (host, port), (device, dtype) = by, keys, address, runs_on
    if engine not in ENGINES:
        raise ConfigError(f"--engine: expected one of {', '.join(ENGINES)}, got '{engine}'")
    if print_ and engine != "vllm":
        raise ConfigError("--print shows the line of --engine vllm; the embedded engine has none")
    if more and engine != "vllm":
        raise ConfigError(f"{' '.join(more)}: the embedded engine takes no options behind `--`; they are for --engine vllm")
    if no_key and (key_env is not None or host not in LOOPBACK):
        raise ConfigError("--no-key goes without --key-env, and with this machine as --host only")
    for folder in allowed:
        if not folder.is_dir():
            raise ConfigError(f"--allow-media {folder}: no such folder")
    from vlmrl.evals.ask.asking import asking_of, chosen, name_of

    asking = chosen(asking_of(checkpoint, recipe), **how)
    for note in asking.notes:
        typer.echo(note, err=True)
    called = name or name_of(checkpoint)
    if engine == "vllm":
        line = _vllm_line(checkpoint, asking, called, host, port, dtype, allowed, max_prompt_tokens, more)
        if not print_:
            _run_vllm(line, _key_of(key_env, no_key))
        return
    _embedded(checkpoint, asking, called, address, allowed, _key_of(key_env, no_key), device, dtype, max_prompt_tokens)


@dataclass(frozen=True)
class _Key:
    """What requests must have."""

    value: str | None
    said: str
    """For the console, which may be a log: of the user's own key its variable."""


def _key_of(variable: str | None, no_key: bool) -> _Key:
    """
    Raises:
        ConfigError: the variable is empty.
    """
    if no_key:
        return _Key(None, "none is asked for")
    if variable is None:
        made = secrets.token_urlsafe(24)
        return _Key(made, made)
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ConfigError(f"--key-env {variable}: the variable is not set")
    return _Key(value, f"that of the variable {variable}")


def _embedded(
    checkpoint: Path,
    asking: Asking,
    name: str,
    address: tuple[str, int],
    allowed: list[Path],
    key: _Key,
    device: str,
    dtype: str,
    max_prompt_tokens: int | None,
) -> None:
    from contextlib import closing

    from vlmrl.evals.ask.models import LocalModel, compute_dtype
    from vlmrl.extras.serve.app import application
    from vlmrl.extras.serve.model import PLAIN, ServedCheckpoint
    from vlmrl.policy.load import quiet_transformers
    from vlmrl.web.listen import listen, run

    quiet_transformers()
    bound = listen(*address)
    model = LocalModel.load(checkpoint, device=device, dtype=compute_dtype(device, dtype))
    with (
        closing(bound),
        closing(ServedCheckpoint(model, asking, name=name, allowed=allowed, max_prompt_tokens=max_prompt_tokens)) as served,
    ):
        host, port = bound.getsockname()[:2]

        def answers() -> None:
            typer.echo(f"base url: http://{f'[{host}]' if ':' in host else host}:{port}/v1")
            typer.echo(f"api key:  {key.said}")
            typer.echo(f"model:    {name} (asked as in training), {name}{PLAIN} (messages as they are)")

        run(application(served, key=key.value), bound, answers)


def _vllm_line(
    checkpoint: Path,
    asking: Asking,
    name: str,
    host: str,
    port: int,
    dtype: str,
    allowed: list[Path],
    max_prompt_tokens: int | None,
    more: list[str],
) -> list[str]:
    """Say the line and what it cannot say."""
    from dataclasses import replace

    from vlmrl.data.encode import instruction
    from vlmrl.evals.ask.models import model_folder
    from vlmrl.extras.serve.vllm_line import vllm_line, what_differs
    from vlmrl.policy.load import load_processor, saved_rule

    folder = model_folder(checkpoint)
    own_code = load_processor(str(folder)).family.own_code
    asking = replace(asking, max_prompt_tokens=max_prompt_tokens or asking.max_prompt_tokens)
    line = vllm_line(
        folder, asking, rule=saved_rule(str(folder)), own_code=own_code, name=name, host=host, port=port, dtype=dtype, allowed=allowed
    )
    line += more  # behind ours: of an option that is given twice vLLM takes the last
    for note in what_differs(asking, own_code=own_code):
        typer.echo(f"note: {note}", err=True)
    assert asking.answer_type is not None
    if asking.prompt is None:
        typer.echo(f"instruction: {instruction(asking.answer_format, asking.answer_type)}", err=True)
    else:
        typer.echo(f"prompt: {asking.prompt}", err=True)
    typer.echo(shlex.join(line))
    return line


def _run_vllm(line: list[str], key: _Key) -> None:
    """Become vLLM's server.

    Raises:
        ConfigError: it is not installed.
    """
    found = shutil.which(line[0])
    if found is None:
        raise ConfigError("--engine vllm: there is no command 'vllm' here: pip install 'vlmrl[vllm]', or run the line above where it is")
    environment = dict(os.environ)
    if key.value is not None:
        environment["VLLM_API_KEY"] = key.value
        typer.echo(f"api key: {key.said}", err=True)
    os.execve(found, line, environment)
