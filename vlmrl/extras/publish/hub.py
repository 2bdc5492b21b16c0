"""The upload. The only place that talks to a model hub, through huggingface_hub with the user's own login."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

from vlmrl.errors import ConfigError, RemoteError


def check_repo(repo: str) -> None:
    """
    Raises:
        ConfigError: not `owner/name` as the hub spells it.
    """
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ConfigError(f"--to {repo}: {error}") from error
    if "/" not in repo:
        raise ConfigError(f"--to {repo}: give OWNER/NAME")


def upload(folder: Path, repo: str, *, private: bool, message: str) -> str:
    """Upload a folder as one commit, making the repository where there is none; the address of the commit.

    Raises:
        RemoteError: the hub refused; what it said.
    """
    api = HfApi()
    try:
        api.create_repo(repo, private=private, exist_ok=True, repo_type="model")
        done = api.upload_folder(repo_id=repo, folder_path=folder, repo_type="model", commit_message=message)
    except (HfHubHTTPError, OSError) as error:
        raise RemoteError(
            f"{repo}: not uploaded: {error}; log in with `hf auth login` if that is missing, and run the same command"
        ) from error
    return str(done.commit_url)
