"""Datasets of Hugging Face's hub as a file system: `hf://datasets/OWNER/NAME[@REVISION]/path`.

`HfFileSystem` keeps every listing for the life of the process, so that a build could not notice a commit that
comes while it reads; sizes and digests are therefore asked for by `HfApi`. Both take the token and the server
from the environment (`HF_TOKEN`, `HF_ENDPOINT`). Their calls block, so each runs in a thread, and whoever
waits for it has a time limit; nobody waits for a thread that the hub leaves without an answer.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar, cast
from urllib.parse import unquote

from tasks.core.remote.hosts import in_daemon
from tasks.core.stores import NotRegular, StoreUnreachable

SCHEME = "hf://"
_ADDRESS = re.compile(r"datasets/([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?", re.DOTALL)
TOKEN = "set HF_TOKEN, or run `hf auth login`"
Answer = TypeVar("Answer")


class HubAnswer(OSError):
    """The hub refused a request; `code` is the status of its answer."""

    def __init__(self, code: int) -> None:
        super().__init__(errno.EIO, f"the hub answers {code}")
        self.code = code


class HubFiles:
    """The methods of fsspec's asynchronous file systems that a RemoteStore calls."""

    def __init__(self) -> None:
        from fsspec.asyn import get_loop

        self.loop = get_loop()

    @cached_property
    def _api(self) -> Any:
        from huggingface_hub import HfApi

        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its own retries, a line each
        return HfApi(endpoint=os.environ.get("HF_ENDPOINT"))

    @cached_property
    def _content(self) -> Any:
        from huggingface_hub import HfFileSystem

        return HfFileSystem(endpoint=os.environ.get("HF_ENDPOINT"), skip_instance_cache=True)

    @staticmethod
    def _strip_protocol(path: str) -> str:
        return path.removeprefix(SCHEME).rstrip("/")

    async def _info(self, path: str) -> dict[str, Any]:
        repository, revision, file = _parts(path)
        if not file:
            return {"name": self._strip_protocol(path), "type": "directory", "size": 0}

        def ask() -> Any:
            return self._api.get_paths_info(repository, [file], repo_type="dataset", revision=revision)

        found = await _answered(ask, repository, revision, path, is_repeated=False)
        if not found:
            raise FileNotFoundError(path)
        return _described(found[0], self._strip_protocol(path))

    async def _ls(self, path: str, detail: bool = True) -> list[dict[str, Any]]:
        repository, revision, folder = _parts(path)
        above = self._strip_protocol(path).removesuffix(folder).rstrip("/")

        def ask() -> Any:
            listed = self._api.list_repo_tree(
                repository, folder or None, repo_type="dataset", revision=revision
            )
            return list(listed)

        found = await _answered(ask, repository, revision, path)
        return [_described(one, f"{above}/{one.path}") for one in found]

    async def _cat_file(self, path: str, start: int, end: int) -> bytes:
        repository, revision, _ = _parts(path)

        def ask() -> bytes:
            return bytes(self._content.cat_file(path, start=start, end=end, cache_type="none"))

        return await _answered(ask, repository, revision, path)


def _parts(path: str) -> tuple[str, str | None, str]:
    """Return the repository, the revision and the path within it; NotRegular for another kind of address."""
    found = _ADDRESS.fullmatch(path.removeprefix(SCHEME).rstrip("/"))
    if found is None:
        raise NotRegular("an address of the hub is hf://datasets/OWNER/NAME, with @REVISION or without")
    return found[1], unquote(found[2]) if found[2] else None, found[3] or ""


def _described(entry: Any, name: str) -> dict[str, Any]:
    """Return a file or a folder as fsspec does."""
    if not hasattr(entry, "blob_id"):
        return {"name": name, "type": "directory", "size": 0}
    digest = entry.lfs.sha256 if entry.lfs is not None else entry.blob_id
    return {"name": name, "type": "file", "size": entry.size, "ETag": digest}


async def _answered(
    ask: Callable[[], Answer], repository: str, revision: str | None, path: str, is_repeated: bool = True
) -> Answer:
    """Return the hub's answer; raises the error of a local file system, StoreUnreachable where trying again
    would not help, or HubAnswer. A request that `is_repeated` was tried several times by huggingface_hub."""
    try:
        return cast(Answer, await in_daemon(ask))
    except Exception as error:
        known = _translated(error, repository, revision, path)
        if known is None and not is_repeated:
            raise
        problem = f"the hub cannot be reached ({type(error).__name__}); check the network and run again"
        raise known or StoreUnreachable(errno.EIO, problem, path) from None


def _translated(error: Exception, repository: str, revision: str | None, path: str) -> OSError | None:
    """Return the error that a caller expects for one of huggingface_hub; None for those of connections."""
    from huggingface_hub import errors

    unknown = f"the hub has no dataset {repository}, or it is private: {TOKEN}"
    problems = {
        errors.GatedRepoError: f"{repository} is gated: accept its terms on its page, and {TOKEN}",
        errors.RepositoryNotFoundError: unknown,
        errors.RevisionNotFoundError: f"the dataset {repository} has no revision {revision}",
        errors.OfflineModeIsEnabled: "HF_HUB_OFFLINE is set; unset it, or copy the files here",
    }
    problem = next((text for kind, text in problems.items() if isinstance(error, kind)), "")
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        problem = unknown  # as HfFileSystem passes on that it found no repository
    if problem:
        return StoreUnreachable(errno.EACCES, problem, path)
    if isinstance(error, errors.EntryNotFoundError | FileNotFoundError):
        return FileNotFoundError(path)
    if isinstance(error, errors.HFValidationError):
        return NotRegular(f"{repository} is no name of a dataset")
    return HubAnswer(error.response.status_code) if isinstance(error, errors.HfHubHTTPError) else None
