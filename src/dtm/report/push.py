"""Upload an exported model to the hub, through the package `huggingface_hub`."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from dtm.errors import ConfigError, DtmError, install_extra, require
from dtm.models.export import CONFIG as ADAPTER
from dtm.runs.folder import read_object

LOGIN = "Run `hf auth login`, or set HF_TOKEN to a token that may write"
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def require_hub(repository: str) -> None:
    """Raise an error for a repository that cannot be written to, before any work.

    The name must be USER/NAME, the package must be installed, and the login must have write access. USER is
    the logged-in user or one of their organisations.
    """
    require(
        _REPOSITORY.fullmatch(repository) is not None,
        f"--push {repository}: write USER/NAME, for example --push me/maze-small",
    )
    require(
        importlib.util.find_spec("huggingface_hub") is not None,
        f"--push {repository}: the package huggingface_hub is not installed. Run: {install_extra('hub')}",
    )
    # Slow to import, and needed only here.
    from huggingface_hub import HfApi
    from huggingface_hub.errors import LocalTokenNotFoundError

    try:
        found = HfApi().whoami()
    except LocalTokenNotFoundError:
        raise ConfigError(f"--push {repository}: not logged in to the hub. {LOGIN}") from None
    except Exception as problem:  # an invalid token, no network, a proxy: many types of error
        raise ConfigError(
            f"--push {repository}: the hub did not accept the login: {problem}. {LOGIN}; without a network, "
            "leave out --push, and upload the folder later with `hf upload`"
        ) from None
    names = [found["name"], *(one["name"] for one in found.get("orgs", ()))]
    owner = repository.partition("/")[0]
    require(
        owner in names,
        f"--push {repository}: you are logged in as {found['name']}, and may write to {', '.join(names)}. "
        f"Choose one of them, or log in as another user. {LOGIN}",
    )
    role = found.get("auth", {}).get("accessToken", {}).get("role")
    require(role != "read", f"--push {repository}: the token can only read. {LOGIN}")


def local_base(folder: Path) -> str | None:
    """Return the base of an exported adapter if it is a local folder, which others cannot load."""
    if not (folder / ADAPTER).is_file():
        return None
    base = str(read_object(folder / ADAPTER)["base_model_name_or_path"])
    return base if Path(base).is_dir() else None


def push_folder(folder: Path, repository: str, message: str, private: bool = False) -> str:
    """Upload a folder as a model of the hub; return the URL of its page.

    The repository is created if it does not exist, public by the owner's default unless ``private``.
    """
    from huggingface_hub import HfApi

    hub = HfApi()
    try:
        address = hub.create_repo(repository, private=private or None, exist_ok=True)
        hub.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    except Exception as problem:  # keep the export, which has succeeded
        raise DtmError(
            f"the upload to {repository} failed: {problem}\nThe model is in {folder}. Try again with: "
            f"hf upload {repository} {folder}"
        ) from problem
    return str(address)
