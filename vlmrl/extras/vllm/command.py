"""`vlmrl serve --rollouts` and `--teacher`: vLLM for the rollouts of runs on other devices or machines, and as their teacher."""

from __future__ import annotations

from pathlib import Path

from vlmrl.cli.names import load_said


def rollout_server(
    recipe: str, overrides: list[str], *, listen: str, token_file: Path | None, stage: str | None, print_: bool = False
) -> None:
    """Run vLLM's own server for the answers of a run (rollout.vllm.servers). It takes the run's weights, and answers with these only.

    Args:
        recipe: of the run that will ask, with its overrides.
        listen: HOST:PORT; port 0 takes a free one. Another host than this one needs a token.
        token_file: with the token that askers must have; made if it is not there.
        stage: whose settings count; the first with vllm.
        print_: say the line of `vllm serve`, and run nothing.

    Raises:
        ConfigError: the recipe has problems, or the address or the token does not do.
    """
    from vlmrl.extras.vllm.serving import serve
    from vlmrl.methods import method_problems
    from vlmrl.policy.load import quiet_transformers
    from vlmrl.run.optional import TOY
    from vlmrl.run.ui import Ui

    loaded = load_said(recipe, overrides, method_problems)
    quiet_transformers()
    ui = Ui()
    serve(
        loaded.config,
        lambda: TOY["prepare"](loaded.config, ui),
        listen=listen,
        token_file=token_file,
        stage=stage,
        say=print if print_ else lambda text: ui.say(text),
        print_=print_,
    )


def teacher_server(
    model: str, more: list[str], *, listen: str, token_file: Path | None, device: str, dtype: str, print_: bool = False
) -> None:
    """Run vLLM's own server as the teacher of stages of kind distill (teacher.servers). Its weights are the model's, and stay.

    Args:
        model: folder or hub id.
        more: options of vLLM.
        listen, token_file, print_: as of `rollout_server`.

    Raises:
        ConfigError: the model cannot be a teacher, or the address or the token does not do.
    """
    from vlmrl.extras.vllm.serving import serve_teacher
    from vlmrl.policy.load import quiet_transformers
    from vlmrl.run.ui import Ui

    quiet_transformers()
    ui = Ui()
    say = print if print_ else lambda text: ui.say(text)
    serve_teacher(model, more, listen=listen, token_file=token_file, device=device, dtype=dtype, say=say, print_=print_)
