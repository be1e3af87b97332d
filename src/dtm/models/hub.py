"""Find a model: a folder, or the local copy of a hub repository that was downloaded before.

Nothing is downloaded here, so that a typo does not start a download of sixteen gigabytes.
"""

from __future__ import annotations

import re
from pathlib import Path

from dtm.errors import CheckpointError, nearest

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def find_folder(name: str | Path) -> Path:
    """The folder itself, or the newest snapshot of ``organisation/model`` in the hub's cache."""
    if Path(name).is_dir():
        return Path(name)
    message, parent = f"no usable model in {name}: there is no such folder", Path(name).parent
    beside = [str(path) for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
    hint = f" {nearest(str(name), beside)}" if parent != Path() and beside else ""
    if not _REPOSITORY.fullmatch(str(name)):
        raise CheckpointError(f"{message}.{hint} Name a model's folder, or a hub model as organisation/model")
    # Slow to import, and needed only for hub names.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(name), local_files_only=True))
    except LocalEntryNotFoundError:
        raise CheckpointError(
            f"{message}, nor a hub model of that name in the cache.{hint} Run `hf download {name}` first "
            f"(`dtm fit` needs only `hf download {name} config.json`)."
        ) from None
