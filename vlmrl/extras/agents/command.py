"""`vlmrl tools env`: environments for training over several turns. Check what they must keep, play episodes; and their list."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vlmrl.cli.names import Wanted
from vlmrl.errors import ConfigError, VlmrlError

if TYPE_CHECKING:
    from vlmrl.extras.agents.history import History
    from vlmrl.extras.agents.pool import EnvPool
    from vlmrl.extras.agents.trajectory import Trajectory

Name = Annotated[str, typer.Argument(help="Environment, for example toy_desk", show_default=False)]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Its arguments, for example crash_share=0.1", show_default=False),
]
Plugins = Annotated[list[str] | None, typer.Option("--plugin", help="Also import this module, for its environments.", show_default=False)]
Tasks = Annotated[
    Path | None,
    typer.Option(help="JSONL file of tasks, or of rows, media beside it; without it, those that it declares.", show_default=False),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the episodes' seeds.")]
Turns = Annotated[int, typer.Option(min=1, help="Most actions of an episode.")]
Deadline = Annotated[float, typer.Option(min=0.01, help="Seconds that a reset or a step may take.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    env = typer.Typer(no_args_is_help=True, help="Environments: worlds that answer actions with screens.")
    app.add_typer(env, name="env")
    for command in (check, play, act, lengths):
        env.command()(command)


def environments(wanted: Wanted) -> None:
    """Print every environment, or one, with its arguments, and what is missing for it on this machine.

    Raises:
        ConfigError: there is no such environment.
    """
    from vlmrl.extras.agents.find import environments as all_of
    from vlmrl.extras.agents.find import lacking_for, missing_for
    from vlmrl.registry import nearest, type_name

    known = all_of(wanted.plugins)
    if wanted.name is not None and wanted.name not in known.names():
        near = nearest(wanted.name, known.names())
        raise ConfigError(f"unknown environment '{wanted.name}'{near} (known: {', '.join(known.names())})")
    listed: list[dict[str, Any]] = []
    for name in known.names() if wanted.name is None else [wanted.name]:
        entry, missing, lacking = known.get(name), missing_for(name), lacking_for(name)
        state = f"missing: {missing}" if missing else f"ready, but {lacking}" if lacking else "ready"
        arguments = [
            f"{p.name}: {type_name(p.annotation)}" + ("" if p.required else f" = {json.dumps(p.default)}")
            for p in entry.parameters.values()
        ]
        listed.append({"name": name, "summary": entry.summary, "arguments": arguments, "state": state})
    if wanted.as_json:
        typer.echo(json.dumps(listed, indent=1))
        return
    for one in listed:
        typer.echo(f"{one['name']}: {one['summary']}")
        for line in (*one["arguments"], one["state"]):
            typer.echo(f"  {line}")


def check(
    name: Name,
    arguments: Arguments = None,
    plugin: Plugins = None,
    tasks: Tasks = None,
    episodes: Annotated[
        int | None,
        typer.Option(min=1, help="Episodes that are played twice; without it one of each task, and at least 20.", show_default=False),
    ] = None,
    turns: Turns = 20,
    seed: Seed = 0,
    deadline: Deadline = 20.0,
) -> None:
    """Try out what an environment must keep: same screens for a seed, its optimum, no faults. Exit code 70 where it does not.

    Example: vlmrl tools env check toy_desk
    """
    from vlmrl.extras.agents.check import check as look
    from vlmrl.extras.agents.find import begins_alike, default_tasks, open_pool
    from vlmrl.extras.agents.pool import PoolSettings

    settings = PoolSettings(workers=2, deadline=deadline)
    with open_pool(name, _arguments(arguments), plugins=plugin or (), settings=settings) as pool:
        given = _tasks(tasks, name) or default_tasks(name, _arguments(arguments))
        most = episodes or max(20, len(given))
        done = look(pool, given, episodes=most, turns=turns, seed=seed, begins_alike=begins_alike(name))
        typer.echo(f"{name}: {', '.join(f'{key} {value}' for key, value in pool.identity.items())}")
    for line in done.lines():
        typer.echo(line)
    if not done.ok:
        wrong = [one.what for one in done.found.values() if not one.ok]
        raise VlmrlError(f"environment '{name}' does not keep: {'; '.join(wrong)}")


def play(
    name: Name,
    out: Annotated[Path, typer.Argument(help="Folder to write screens and trajectories to", show_default=False)],
    arguments: Arguments = None,
    plugin: Plugins = None,
    tasks: Tasks = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 4,
    attempts: Annotated[int, typer.Option(min=1, help="Attempts at each episode, from the same screen.")] = 1,
    agent: Annotated[
        Literal["random", "solve"], typer.Option(help="Who acts: proposed actions at random, or the known solution.")
    ] = "random",
    turns: Turns = 20,
    seed: Seed = 0,
    deadline: Deadline = 20.0,
    rows: Annotated[
        bool, typer.Option("--rows", help="Write the episodes that succeed as rows of fine-tuning, beside the screens.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="Count the tokens of the prompts for this model.", show_default=False)] = None,
    history: Annotated[
        list[str] | None,
        typer.Option(help="--rows, --model: what prompts hold: all, 3 (last 3 screens), 3/8 (last 3, every 8 turns).", show_default=False),
    ] = None,
    actions: Annotated[bool, typer.Option(help="--rows: tell earlier actions where a prompt begins anew, as the stage does.")] = True,
    answer_format: Annotated[str, typer.Option(help="--rows: answer_format of the stage that learns from them.")] = "think_or_not",
    max_pixels: Annotated[int, typer.Option(min=1, help="--model: largest size of a screen.")] = 1280 * 720,
) -> None:
    """Play episodes with an agent that is no model; keep the screens and the trajectories.

    Example: vlmrl tools env play toy_desk /tmp/played --agent solve
    """
    from vlmrl.extras.agents.find import default_tasks, open_pool
    from vlmrl.extras.agents.play import play_many, write_records
    from vlmrl.extras.agents.pool import PoolSettings

    if history and model is None and not rows:
        raise ConfigError("--history says which prompts --rows writes or --model counts; give one of them")
    histories = _histories(history or (["all"] if rows else ["all", "1", "3", "3/8"]))
    policy = dataclasses.replace(next(iter(histories.values())), actions=actions)
    if rows:
        _check_rows(name, list(histories), answer_format)
    _fresh(out)

    def after(played: Trajectory) -> None:
        """What no row can hold ends it at the first attempt, not after all of them."""
        if rows and played.outcome == "success":
            from vlmrl.extras.agents.demonstrations import episode_rows

            episode_rows(played, policy, answer_format)

    settings = PoolSettings(workers=1, deadline=deadline)
    with open_pool(name, _arguments(arguments), plugins=plugin or (), settings=settings) as pool:
        given = _tasks(tasks, name) or default_tasks(name, _arguments(arguments))
        groups = play_many(pool, given, out, episodes=episodes, attempts=attempts, agent=agent, turns=turns, seed=seed, after=after)
        write_records(out, groups)
        _tell(out, groups, pool)
    if rows:
        typer.echo(_demonstrated(out, groups, policy, answer_format))
    if model is not None:
        played = [one for group in groups for one in group]
        for line in _counted(model, played, out, histories, max_pixels):
            typer.echo(line)


def act(
    name: Name,
    out: Annotated[Path, typer.Argument(help="Folder to write screens and trajectories to", show_default=False)],
    arguments: Arguments = None,
    model: Annotated[str, typer.Option(help="Folder or hub id of the model that plays.", show_default=False)] = "",
    plugin: Plugins = None,
    tasks: Tasks = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 4,
    attempts: Annotated[int, typer.Option(min=1, help="Attempts at each episode, from the same screen.")] = 1,
    turns: Turns = 20,
    seed: Seed = 0,
    deadline: Deadline = 20.0,
    history: Annotated[str, typer.Option(help="What prompts hold: all, 3 (last 3 screens), 3/8 (last 3, every 8 turns).")] = "all",
    actions: Annotated[bool, typer.Option(help="Tell earlier actions where a prompt begins anew, as the stage does.")] = True,
    answer_format: Annotated[str, typer.Option(help="free, answer_only, think or think_or_not.")] = "free",
    max_pixels: Annotated[int, typer.Option(min=1, help="Largest size of a screen.")] = 1280 * 720,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 1.0,
) -> None:
    """Let a model play episodes, with the reference engine; keep the screens and the trajectories, ids and log-probs included.

    Example: vlmrl tools env act toy_desk /tmp/acted --model runs/toy_gui/final --history 1 --answer-format answer_only
    """
    from vlmrl.extras.agents.act import Acting
    from vlmrl.extras.agents.act import act as play_with
    from vlmrl.extras.agents.find import default_tasks, open_pool
    from vlmrl.extras.agents.play import seeded, write_records
    from vlmrl.extras.agents.pool import PoolSettings
    from vlmrl.policy.load import quiet_transformers
    from vlmrl.types import GenerationSettings

    if not model:
        raise ConfigError("--model: say which model plays")
    (of_history,) = _histories([history]).values()
    _fresh(out)
    quiet_transformers()
    how = Acting(
        model=model,
        settings=GenerationSettings(max_new_tokens=max_new_tokens, temperature=temperature),
        history=dataclasses.replace(of_history, actions=actions),
        answer_format=answer_format,
        turns=turns,
        max_pixels=max_pixels,
        seed=seed,
    )
    with open_pool(name, _arguments(arguments), plugins=plugin or (), settings=PoolSettings(deadline=deadline)) as pool:
        given = _tasks(tasks, name, answer_format) or default_tasks(name, _arguments(arguments))
        groups = play_with(pool, seeded(given, episodes, seed), attempts, how, out)
        write_records(out, groups)
        _tell(out, groups, pool)


def lengths(
    name: Name,
    out: Annotated[Path, typer.Argument(help="JSONL file of rows to write", show_default=False)],
    arguments: Arguments = None,
    plugin: Plugins = None,
    tasks: Tasks = None,
    played: Annotated[
        list[Path] | None,
        typer.Option(
            help="Measure successes in this trajectories.jsonl of `env act`, instead of the declared fewest turns.", show_default=False
        ),
    ] = None,
    unsolved: Annotated[float, typer.Option(min=1.0, help="--played: the length of a task that was tried and never solved.")] = 100.0,
    times: Annotated[
        float | None,
        typer.Option(min=1.0, help="Also end the episodes of a task after so many times its length (max_turns).", show_default=False),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each task whose fewest turns are averaged.")] = 4,
    seed: Seed = 0,
    deadline: Deadline = 20.0,
) -> None:
    """Write tasks as rows with their lengths in turns, for the sampler curriculum_gui.

    Example: vlmrl tools env lengths toy_desk tasks.jsonl
    """
    from vlmrl import fs
    from vlmrl.extras.agents.find import default_tasks, open_pool
    from vlmrl.extras.agents.lengths import declared_lengths, played_lengths, read_played, task_rows
    from vlmrl.extras.agents.pool import PoolSettings
    from vlmrl.extras.agents.rows import takes_rows

    if out.exists():
        raise ConfigError(f"{out} is there already; name another file")
    with open_pool(name, _arguments(arguments), plugins=plugin or (), settings=PoolSettings(workers=1, deadline=deadline)) as pool:
        if takes_rows(name):
            raise ConfigError(f"the tasks of '{name}' are rows of data; give them a tag of their own (docs/data.md)")
        given = _tasks(tasks, name) or default_tasks(name, _arguments(arguments))
        if played:
            found = played_lengths([one for path in played for one in read_played(path)])
        else:
            found = declared_lengths(pool, given, episodes=episodes, seed=seed)
    rows = task_rows(given, found, unsolved=unsolved if played else None, times=times)
    fs.write_text(out, "".join(json.dumps(row) + "\n" for row in rows))
    known = sorted(row["trajectory"]["length"] for row in rows if "trajectory" in row)
    spread = f", from {known[0]:g} to {known[-1]:g} turns" if known else ""
    typer.echo(f"{out}: {len(rows)} tasks, {len(known)} with a length{spread}")
    if not known:
        typer.echo("no length is known: let a model play (vlmrl tools env act), and pass its trajectories with --played")


def _fresh(out: Path) -> None:
    from vlmrl.extras.agents.play import RECORDS

    if (out / RECORDS).exists():
        raise ConfigError(f"{out / RECORDS} is there already; name another folder")


def _tell(out: Path, groups: list[list[Trajectory]], pool: EnvPool) -> None:
    """Say what came of it, and write the page that shows it."""
    from vlmrl.extras.agents.play import RECORDS
    from vlmrl.extras.agents.replay_page import write_played
    from vlmrl.extras.agents.score import score
    from vlmrl.extras.agents.trajectory import turn_columns

    played = [one for group in groups for one in group]
    totals = [one.total for one in played if one.total is not None]
    outcomes = Counter(one.outcome or "running" for one in played)
    mean = f"{sum(totals) / len(totals):g}" if totals else "unknown"
    typer.echo(f"{out / RECORDS}: {len(played)} episodes, {sum(len(one.turns) for one in played)} turns, mean return {mean}")
    typer.echo(f"{write_played(groups, out)}: screen by screen")
    typer.echo("outcomes: " + ", ".join(f"{outcome} {n}" for outcome, n in sorted(outcomes.items())))
    for line in score(groups).lines():
        typer.echo(line)
    if pool.retried:
        typer.echo("tried again: " + ", ".join(f"{reason} {n}" for reason, n in sorted(pool.retried.items())))
    if groups and len(groups[0]) > 1:
        shares = [turn_columns(group).shared() for group in groups]
        typer.echo(f"turns whose state another attempt met too: {sum(shares) / len(shares):.0%} (mean over {len(shares)} episodes)")


def _check_rows(name: str, histories: list[str], answer_format: str) -> None:
    """
    Raises:
        ConfigError: such rows cannot be written.
    """
    from vlmrl.data.encode import ANSWER_FORMATS
    from vlmrl.extras.agents.find import environments as all_of
    from vlmrl.extras.agents.rows import takes_rows

    if len(histories) != 1:
        raise ConfigError(f"--rows writes the prompts of one policy of history, not of {', '.join(histories)}")
    if answer_format not in ANSWER_FORMATS:
        raise ConfigError(f"answer format '{answer_format}' is none of a stage (known: {', '.join(ANSWER_FORMATS)})")
    if name in all_of().names() and takes_rows(name):
        raise ConfigError(f"the tasks of '{name}' are rows of data, whose answers fine-tuning can have as they are")


def _demonstrated(out: Path, groups: list[list[Trajectory]], history: History, answer_format: str) -> str:
    """Write the episodes that succeeded as rows; says how many."""
    from vlmrl import fs
    from vlmrl.extras.agents.demonstrations import ROWS, demonstrations

    made, same = demonstrations(groups, history, answer_format)
    fs.write_text(out / ROWS, "".join(json.dumps(row) + "\n" for row in made))
    more = f", and {same} more that say the same are left out" if same else ""
    return f"{out / ROWS}: {len(made)} rows for fine-tuning with answer_format {answer_format}{more}"


def _histories(texts: list[str]) -> dict[str, History]:
    from vlmrl.extras.agents.history import History

    try:
        return {text: History.of(text) for text in texts}
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _counted(model: str, played: list[Trajectory], out: Path, histories: dict[str, History], max_pixels: int) -> list[str]:
    """Tokens of the prompts, one line per policy of history."""
    from vlmrl.data.encode import Encoder
    from vlmrl.extras.agents.conversation import Conversation
    from vlmrl.extras.agents.play import SCREENS
    from vlmrl.extras.agents.prompts import chains, read
    from vlmrl.media.store import MediaSettings, MediaStore
    from vlmrl.policy.load import load_processor, quiet_transformers

    quiet_transformers()
    bundle = load_processor(model)
    media = MediaSettings(
        min_pixels=min(56 * 56, max_pixels),
        max_pixels=max_pixels,
        video_total_pixels=None,
        fps=2.0,
        min_frames=4,
        max_frames=32,
        cache_bytes=1 << 26,
        decoder="auto",
    )
    with closing(MediaStore.of(media, bundle)) as store:
        conversation = Conversation(Encoder.of(bundle, store, out / SCREENS, max_prompt_tokens=1 << 20))
        lines: list[str] = []
        for text, policy in histories.items():
            found = [
                read(chains(one, policy, conversation, lambda ref: store.get(ref, out / SCREENS).handle)) for one in played if one.turns
            ]
            tokens = sum(total for total, _ in found)
            lines.append(f"history {text}: {tokens} tokens read and sampled, longest prompt {max((most for _, most in found), default=0)}")
    return lines


def _arguments(given: list[str] | None) -> dict[str, Any]:
    """KEY=VALUE with values as in a recipe: YAML, of which JSON is a part.

    Raises:
        ConfigError: what is no KEY=VALUE, or no value of a recipe.
    """
    from vlmrl.config.tree import parse

    out: dict[str, Any] = {}
    problems: list[str] = []
    for one in given or []:
        key, equals, text = one.partition("=")
        if not equals or not key:
            raise ConfigError(f"'{one}': an argument of an environment is written KEY=VALUE")
        value = parse(text, f"'{one}'", problems, lines=False)
        out[key] = "" if value is None else value.plain()
    if problems:
        raise ConfigError(problems)
    return out


def _tasks(path: Path | None, name: str, answer_format: str = "free") -> list[dict[str, Any]]:
    """Tasks of a file: what stands under `environment` of each row, or whole rows where the environment takes these."""
    if path is None:
        return []
    from vlmrl.data.row import parse_row
    from vlmrl.extras.agents.rows import asks_of, row_task, takes_rows

    try:
        tasks = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not tasks or not all(isinstance(task, dict) for task in tasks):
        raise ConfigError(f"{path}: one JSON object per line, and at least one")
    if takes_rows(name):
        root = path.absolute().parent
        samples = [parse_row(task, source=f"{path}:{n + 1}", media_root=".") for n, task in enumerate(tasks)]
        return [row_task(sample, root=root, answer_format=answer_format) for sample in samples]
    asks = asks_of(name)
    return [
        {"id": task.get("id", n), **task["environment"], **asks} if isinstance(task.get("environment"), dict) else {**task, **asks}
        for n, task in enumerate(tasks)
    ]
