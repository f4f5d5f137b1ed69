"""Push an export to Hugging Face's hub: `tarmac export --push OWNER/NAME`.

A new repository is private; who made it opens it on its page. One commit brings all files, so that a reader
never sees half of a model. Large files are uploaded before it, and the hub keeps them, so a push that was
killed goes on with the file that it had come to; what the hub lists with the same digest is not sent again.
huggingface_hub works in a child process, as for `tarmac fetch`: a hub that hangs cannot hang the command.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core import config as configs
from tasks.core.errors import DataError, TarmacError, UsageError, first_line
from tasks.core.files import blake3_file, read_json
from tasks.core.screen import Progress
from tasks.dataset.version.manifest import read_manifest
from tasks.evaluation.results import read_result
from tasks.export.model_card import (
    MARKER,
    BaseWeights,
    TrainingData,
    as_json,
    hide_paths,
    load_expression,
    model_card,
)
from tasks.models import hub
from tasks.models.fetch import MEGABYTE, call_patiently, endpoint, seal_as_listed
from tasks.models.needs import HubNeed
from tasks.models.recipes import check_recipe
from tasks.runs.data import version_path
from tasks.runs.folder import RunFolder
from tasks.runs.record import RunRecord, load_record

RECORD, CARD = "export.json", "README.md"
MADE_BY_HUB = {".gitattributes", CARD}
"""Files that a repository may have when it is made on the hub's page."""
PATIENCE_S = 120.0
"""A push ends after so long without a byte; the next one goes on where it was."""


@dataclass(frozen=True)
class Pushed:
    """A repository that holds the export; `files` and `size_bytes` are what this push changed there."""

    repository: str
    url: str
    commit: str
    is_private: bool
    files: int
    size_bytes: int
    keeps_card: bool
    """Whether the repository has a README.md of somebody's own, which was left as it is."""


def require_pushable(repository: str) -> None:
    """Raise UsageError where nothing can be pushed there from here, without asking the hub."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repository)
        is_name = repository.count("/") == 1
    except HFValidationError:
        is_name = False
    if not is_name:
        raise UsageError(f"--push: {repository!r} is no name of a repository; give OWNER/NAME")
    if hub.is_set(hub.OFFLINE):
        raise UsageError(f"--push: {hub.OFFLINE} keeps everything from asking the hub; unset it")
    if get_token() is None:
        raise UsageError(
            "--push: there is no token for the hub; set HF_TOKEN to one that may write, or log in by "
            "`hf auth login`"
        )


def push(export: Path, run: RunFolder, repository: str, progress: Progress) -> Pushed:
    """Bring the export in that folder and its card into the repository.

    Raises UsageError where the hub refuses name or token, or the repository holds something else; DataError
    where the hub does not answer.
    """

    def silent(doing: str) -> DataError:
        return _unreachable(f"nothing moved for {PATIENCE_S:.0f} s, {doing}", export)

    arguments = {"export": str(export), "run": str(run.path), "repository": repository}
    return Pushed(
        **call_patiently("tasks.export.hub_push:upload", arguments, PATIENCE_S, "starting", silent, progress)
    )


def upload(export: Path, run: Path, repository: str, progress: Progress) -> Pushed:
    """Run in the child process of `push`."""
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")  # its transfer has no time limit
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with _errors(repository, export), tempfile.TemporaryDirectory() as draft:
        return _Upload(export, RunFolder(run), repository, Path(draft), progress).run()


class _Upload:
    def __init__(
        self, export: Path, run: RunFolder, repository: str, draft: Path, progress: Progress
    ) -> None:
        from huggingface_hub import HfApi

        self._export, self._run, self._name, self._draft = export, run, repository, draft
        self._progress, self._api = progress, HfApi()
        self._record: dict[str, Any] = read_json(export / RECORD)
        self._done = self._total = 0

    def run(self) -> Pushed:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        about, listed = self._record, self._listed()
        known = {one.rfilename: one for one in listed.siblings or ()}
        before = self._require_ours(known)
        keeps_card = CARD in known and MARKER not in self._text(CARD)
        files = self._files()
        if keeps_card:
            del files[CARD]
        changed = {
            name: path
            for name, path in files.items()
            if name not in known or seal_as_listed(path, known[name]) is None
        }
        gone = sorted((set(before.get("files", ())) - files.keys()) & (known.keys() - MADE_BY_HUB))
        commit, size_bytes = listed.sha, sum(path.stat().st_size for path in changed.values())
        if changed or gone:
            self._total = size_bytes
            additions = [CommitOperationAdd(name, self._opened(path)) for name, path in changed.items()]
            for addition in additions:
                assert isinstance(addition.path_or_fileobj, _CountedFile)
                addition.path_or_fileobj.on_bytes = self._count
            self._report("uploading to")
            commit = self._api.create_commit(
                self._name,
                [*additions, *(CommitOperationDelete(name) for name in gone)],
                commit_message=f"{about['run']}, step {about['step']}, for {about['format']}",
                parent_commit=listed.sha,
            ).oid
        url = f"{endpoint()}/{self._name}"
        is_private = bool(listed.private)
        return Pushed(self._name, url, commit, is_private, len(changed) + len(gone), size_bytes, keeps_card)

    def _listed(self) -> Any:
        """The repository as the hub lists it; it is made, as a private one, where there is none."""
        from huggingface_hub.errors import RepositoryNotFoundError

        self._report("asking for")
        try:
            return self._api.model_info(self._name, files_metadata=True)
        except RepositoryNotFoundError:
            self._api.create_repo(self._name, private=True, exist_ok=True)
            return self._api.model_info(self._name, files_metadata=True)

    def _require_ours(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the record of the export that is there; UsageError for a repository of something else."""
        if RECORD not in known:
            if others := sorted(known.keys() - MADE_BY_HUB):
                raise UsageError(
                    f"--push: {self._name} holds something else, such as {others[0]}; name another repository"
                )
            return {}
        try:
            there: dict[str, Any] = json.loads(self._text(RECORD))
            is_ours = (there["format"], there["run"]) == (self._record["format"], self._record["run"])
        except (ValueError, KeyError, TypeError):
            is_ours, there = False, {}
        if not is_ours:
            raise UsageError(
                f"--push: {self._name} holds an export of {there.get('run', 'something else')} for "
                f"{there.get('format', 'something else')}; name another repository"
            )
        return there

    def _text(self, file: str) -> str:
        self._report(f"reading {file} of")
        path = self._api.hf_hub_download(self._name, file, local_dir=self._draft / "there")
        return Path(path).read_text(encoding="utf-8", errors="replace")

    def _files(self) -> dict[str, Path]:
        """The files of the repository by name: those of the export, without paths of this machine."""
        found = {}
        for name in self._record["files"]:
            path = self._export / name
            place = name
            if self._record["format"] == "nanovlm":  # which looks for the tokenizer by the repository's name
                place = name.removeprefix("tokenizer/")
            if name.endswith("config.json"):
                config = hide_paths(read_json(path) | self._moved(name))
                path = self._written(place, as_json(config)) if config != read_json(path) else path
            found[place] = path
        record = {**hide_paths(self._record), "usage": load_expression(self._record["usage"], self._name)}
        record["files"] = {name: blake3_file(path) for name, path in found.items()}
        found[RECORD] = self._written(RECORD, as_json(record))
        found[CARD] = self._written(CARD, self._card(record).encode())
        return found

    def _moved(self, name: str) -> dict[str, Any]:
        is_nanovlm = self._record["format"] == "nanovlm" and name == "config.json"
        return {"lm_tokenizer": self._name} if is_nanovlm else {}

    def _written(self, name: str, content: bytes) -> Path:
        path = self._draft / "here" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def _card(self, export: Mapping[str, Any]) -> str:
        config, record = configs.reload(self._run.config), load_record(self._run)
        assert config.train is not None
        step = self._record["step"]
        tasks = [task.name for task in config.evaluate.tasks] if config.evaluate is not None else []
        there = sorted(path.stem for path in self._run.evaluation(step, "x").parent.glob("*.json"))
        names = [*tasks, *(name for name in there if name not in tasks)]
        results = [read_result(self._run.evaluation(step, name)) for name in names if name in there]
        needs = check_recipe(config.train).needs
        return model_card(
            export,
            record.identity,
            config,
            _datasets(record, config.name),
            [result for result in results if result is not None],
            self._bases([need for need in needs if isinstance(need, HubNeed)]),
            endpoint(),
        )

    def _bases(self, needs: Sequence[HubNeed]) -> list[BaseWeights]:
        """The repositories whose weights the training began with, and their licences, as the hub has them."""
        from huggingface_hub.errors import HfHubHTTPError

        found = []
        names = [need.repository for need in needs if any("weights" in part.name for part in need.parts)]
        for name in dict.fromkeys(names):
            self._report(f"asking for the licence of {name} for")
            try:
                card = self._api.model_info(name).card_data
            except HfHubHTTPError:  # it is private or gone; its name is then not for others to see
                continue
            found.append(BaseWeights(name, None if card is None else card.get("license")))
        return found

    def _opened(self, path: Path) -> _CountedFile:
        self._report("reading files for")
        return _CountedFile(io.FileIO(path))

    def _count(self, size_bytes: int) -> None:
        self._done += size_bytes
        self._report("MB to")

    def _report(self, doing: str) -> None:
        note = f"{doing} {self._name}" if doing == "MB to" else f"MB, {doing} {self._name}"
        self._progress(min(self._done, self._total) // MEGABYTE, self._total // MEGABYTE, note)


class _CountedFile(io.BufferedReader):
    """A file that reports the bytes that are read."""

    on_bytes: Callable[[int], None] = staticmethod(lambda size_bytes: None)

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.on_bytes(len(found))
        return found


def _datasets(record: RunRecord, name: str) -> list[TrainingData]:
    """The versions that the run was trained on; of one that was pruned or moved, the run's `name` of it."""
    whole, found = sum(ref.weight for ref in record.data), []
    for ref in record.data:
        try:
            manifest = read_manifest(version_path(ref))
        except TarmacError:
            found.append(TrainingData(name, ref.version, "no longer known here", None, ref.weight / whole))
            continue
        train = manifest.splits.get("train")
        samples = None if train is None else train.samples
        share = ref.weight / whole
        found.append(TrainingData(manifest.name, ref.version, manifest.digest, samples, share))
    return found


@contextmanager
def _errors(repository: str, export: Path) -> Iterator[None]:
    """Turn the errors of huggingface_hub into one line with the fix."""
    from huggingface_hub import errors

    network: tuple[Any, ...] = (OSError, RuntimeError, *errors.HfHubHTTPError.__bases__)
    try:
        yield
    except TarmacError:
        raise
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        reason = error.server_message or first_line(error)
        if status == 401:
            raise UsageError(
                f"--push: {endpoint()} refuses the token ({reason}); set HF_TOKEN to one that may write"
            ) from None
        if status == 403:
            raise UsageError(
                f"--push: the token may not write to {repository} ({reason}); name a repository of your own, "
                "or set HF_TOKEN to one that may write"
            ) from None
        if 400 <= status < 500 and status not in (408, 412, 429):
            raise UsageError(f"--push: {endpoint()} refuses {repository}: {reason}") from None
        raise _unreachable(reason, export) from None
    except network as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise _unreachable(first_line(error.__cause__ or error), export) from None


def _unreachable(problem: str, export: Path) -> DataError:
    return DataError(
        f"--push: {endpoint()} does not take the export ({problem}); push again where there is a network: "
        f"{export} stays, and large files that have arrived are not sent again"
    )
