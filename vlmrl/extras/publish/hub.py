"""The upload. The only place that talks to a model hub, through huggingface_hub with the user's own login."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

from vlmrl.errors import ConfigError, RemoteError

REFUSALS = (*cast("tuple[type[Exception], ...]", HfHubHTTPError.__bases__), OSError, RuntimeError, ValueError)
"""What the client raises: errors of its HTTP library, which is another one from version to version, and of large files and cards."""


def check_repo(repo: str, where: str) -> None:
    """
    Args:
        where: the option or key that names it.

    Raises:
        ConfigError: not `owner/name` as the hub spells it.
    """
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ConfigError(f"{where} {repo}: {error}") from error
    if "/" not in repo:
        raise ConfigError(f"{where} {repo}: give OWNER/NAME")


def make_repo(repo: str, *, private: bool) -> str:
    """Make a repository where there is none; its address.

    Raises:
        RemoteError: the hub refused; what it said.
    """
    with _refusals(repo):
        return str(HfApi().create_repo(repo, private=private, exist_ok=True, repo_type="model"))


def upload(folder: Path, repo: str, *, private: bool, message: str) -> str:
    """Upload a folder as one commit, making the repository where there is none; the address of the commit.

    Raises:
        RemoteError: the hub refused; what it said.
    """
    make_repo(repo, private=private)
    with _refusals(repo):
        return str(HfApi().upload_folder(repo_id=repo, folder_path=folder, repo_type="model", commit_message=message).commit_url)


@contextmanager
def _refusals(repo: str) -> Iterator[None]:
    try:
        yield
    except REFUSALS as error:
        why = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ is not None else error
        text = " ".join(str(why).split())
        raise RemoteError(
            f"{repo}: not uploaded: {text}; log in with `hf auth login` if that is missing, and run the same command"
        ) from error
