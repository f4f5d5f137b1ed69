"""What would end a training at its start, asked before anything is built or started for it.

`plan`, `run`, `train` and the flows ask the same, so that they agree. Each answer costs milliseconds, or one
question to the hub; found later it costs a build, a server and the measuring of a loader.
"""

from __future__ import annotations

from pathlib import Path

from tasks.core.errors import UsageError
from tasks.core.schema import Config
from tasks.evaluation.fit import require_fit
from tasks.models import hub
from tasks.models.fetch import require_offered
from tasks.models.hub import Lack
from tasks.models.recipes import check_recipe
from tasks.runs.checkpoints import list_checkpoints
from tasks.runs.data import overfull, overfull_of
from tasks.runs.plan import locate


def require_startable(
    config: Config,
    version: Path | None,
    *,
    most: int | None = None,
    fresh: bool = False,
    asks_hub: bool = True,
) -> None:
    """UsageError and DataError for evaluations or a batch that `version` does not serve, and for weights that
    the training starts from and cannot have. Where the version is yet to be built, it has `most` samples at
    most, if that is known.

    The hub is asked for those that would be downloaded, unless the training runs elsewhere.
    """
    batch = None
    if version is not None:
        require_fit(config, version)
        batch = overfull(config, version)
    elif config.train is not None and most is not None and len(config.train.data or ()) < 2:
        batch = overfull_of(config.train, most, "samples that there are")
    if batch is not None and batch.is_wrong:
        raise UsageError(f"train.batch_size: {batch.problem}; {batch.remedy}")
    missing = _missing(config, version, fresh)
    for lack in missing:
        if lack.is_certain:
            raise UsageError(_in_words(lack))
    if missing and asks_hub and config.engine.train.kind == "local":
        require_offered([lack.need for lack in missing], config.runs)


def lacking_weights(config: Config, version: Path | None) -> list[str]:
    """What a training of the config has to download first, in a sentence each that begins with the key."""
    return [_in_words(lack) for lack in _missing(config, version, fresh=False) if not lack.is_certain]


def _missing(config: Config, version: Path | None, fresh: bool) -> list[Lack]:
    """What is not on this machine, or not as it was fetched; a run that has a checkpoint starts from that."""
    if config.train is None:
        return []
    if version is not None and not fresh and list_checkpoints(locate(config, version)):
        return []
    return list(hub.lacks(check_recipe(config.train).needs, hub.read_lock(config.runs)))


def _in_words(lack: Lack) -> str:
    return f"{lack.problem}; {lack.finding().remedy}"
