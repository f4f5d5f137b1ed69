"""What a version was built by: its rules and sources, as build.json keeps them or as a config says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tasks.core.errors import UsageError
from tasks.core.files import digest, read_json
from tasks.core.process import available_cores
from tasks.core.schema import BuildEngine, Config, Dataset, Engines
from tasks.dataset.build.fingerprint import CONVERTER, PLACES, config_digest, packages
from tasks.dataset.build_info import is_sealed
from tasks.dataset.layout import BUILD
from tasks.dataset.manifest import Manifest
from tasks.dataset.repair.identity import read_proven_manifest, read_record
from tasks.dataset.repair.place import Place


@dataclass(frozen=True)
class Origin:
    """`config` is None where nothing tells the rules; `lacking` says why the sources cannot be read, "" where
    they can. `build` is what build.json says, empty where it is lost; `is_sealed` tells whether it is as it
    was written."""

    config: Config | None
    lacking: str
    is_private: bool
    workers: int
    build: Mapping[str, Any] = field(default_factory=dict)
    is_sealed: bool = False

    @property
    def dataset(self) -> Dataset:
        assert self.config is not None
        return self.config.dataset

    def changed_packages(self) -> str:
        """What takes samples otherwise than when the version was built: `pillow 11.3.0, was 10.4.0`."""
        if self.config is None:
            return ""
        was = {**_mapping(self.build.get("versions")), "Tarmac's converter": self.build.get("converter")}
        now = {**packages(self.dataset.modality), "Tarmac's converter": CONVERTER}
        changed = [name for name in now if was.get(name) not in (None, now[name])]
        return "; ".join(f"{name} {now[name]}, was {was[name]}" for name in changed)


def read_origin(place: Place, given: Config | None) -> Origin:
    """What is known; UsageError for a given config with other rules than the version has."""
    kept = read_build(place.version)
    build = kept.facts
    manifest = read_proven_manifest(place, read_record(place, build))
    stored, lost = _stored(kept, manifest)
    for other in place.others:  # which may have been built by the same rules
        stored = stored or _stored(read_build(other), manifest)[0]
    is_private = build.get("private", True if given is None else given.dataset.private) is not False
    if given is not None:
        _require_same_rules(place.version, manifest, stored, given)
        name = given.name if stored is None else stored.config.name
        engine = given.engine.for_build()
        workers = (engine.workers if engine.kind == "local" else None) or available_cores()
        config = _config(name if manifest is None else manifest.name, given.dataset, workers)
        return Origin(config, "", is_private, workers, build, kept.is_sealed)
    if stored is None:
        lacking = f"its config is lost: build.json {lost}"
        return Origin(None, lacking, is_private, available_cores(), build, kept.is_sealed)
    workers = _workers(build)
    config = _config(stored.config.name, stored.config.dataset, workers)
    return Origin(config, stored.lacking, is_private, workers, build, kept.is_sealed)


@dataclass(frozen=True)
class Kept:
    """What build.json keeps; `lost` says why it keeps nothing. Where it is not sealed, as one of an older
    Tarmac or one that was changed by hand, its facts are of the types that they should have, and no more."""

    facts: Mapping[str, Any]
    is_sealed: bool
    lost: str = ""


FACTS: Mapping[str, tuple[type, ...]] = {
    "name": (str,),
    "dataset": (dict,),
    "cut": (list,),
    "inputs_digest": (str,),
    "unread": (int,),
    "filtered": (int,),
    "private": (bool,),
    "built": (int, float),
    "host": (str,),
    "engine": (dict,),
    "python": (str,),
    "versions": (dict,),
    "converter": (int,),
    "output": (str,),
    "files": (dict,),
}


def read_build(version: Path) -> Kept:
    """What is left of build.json."""
    try:
        build = read_json(version / BUILD)
    except FileNotFoundError:
        return Kept({}, False, "is missing")
    except OSError as error:
        return Kept({}, False, f"cannot be read: {error.strerror}")
    except (ValueError, RecursionError):
        return Kept({}, False, "is torn")
    if not isinstance(build, dict):
        return Kept({}, False, "is torn")
    try:
        if is_sealed(build):
            return Kept(build, True)
    except (ValueError, RecursionError):
        pass  # it holds what no build writes
    return Kept({name: value for name, value in build.items() if _is_fact(name, value)}, False)


def _is_fact(name: str, value: Any) -> bool:
    """Whether the value can stand there, and be written again."""
    try:
        digest(value)
    except (ValueError, RecursionError):
        return False
    return type(value) in FACTS.get(name, ())


def _workers(build: Mapping[str, Any]) -> int:
    workers = _mapping(build.get("engine")).get("workers")
    return workers if type(workers) is int and workers > 0 else available_cores()


@dataclass(frozen=True)
class _Stored:
    config: Config
    lacking: str


def _stored(kept: Kept, manifest: Manifest | None) -> tuple[_Stored | None, str]:
    """The config that build.json keeps, if it gives the manifest's digest; else why there is none."""
    cut = kept.facts.get("cut")
    try:
        dataset = Dataset.model_validate(kept.facts["dataset"])
        config = _config(str(kept.facts["name"]), dataset, 1)
    except KeyError:
        return None, kept.lost or "keeps none"
    except ValidationError:
        return None, "keeps none that is valid"
    if manifest is not None and config_digest(dataset) != manifest.config_digest:
        return None, "keeps one of other rules than the manifest's"
    if not cut:
        return _Stored(config, ""), ""
    keys = ", ".join(map(str, cut)) if isinstance(cut, list) else "an address"
    return _Stored(config, f"build.json keeps no passwords or signatures, which {keys} has"), ""


def _config(name: str, dataset: Dataset, workers: int) -> Config:
    engine = BuildEngine(kind="local", workers=workers)
    return Config(name=name, dataset=dataset, engine=Engines(build=engine))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _require_same_rules(
    version: Path, manifest: Manifest | None, stored: _Stored | None, given: Config
) -> None:
    if manifest is None or config_digest(given.dataset) == manifest.config_digest:
        return
    differs = [] if stored is None else list(_differing(stored.config.dataset, given.dataset))
    what = ", ".join(differs[:5]) or f"the manifest's config_digest is {manifest.config_digest[:12]}…"
    raise UsageError(
        f"--config: its rules are not those of version {version.name} ({what}), so its shards would not be "
        "the same; give the config that it was built by, or make a new version: tarmac build"
    )


def _differing(one: Dataset, other: Dataset) -> Sequence[str]:
    """The keys of rules in which two blocks differ."""
    mine, its = (_flat(dataset.model_dump(mode="json", exclude=PLACES)) for dataset in (one, other))
    return [f"dataset.{key}" for key in sorted(mine.keys() | its.keys()) if mine.get(key) != its.get(key)]


def _flat(block: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in block.items():
        flat |= _flat(value, f"{above}{name}.") if isinstance(value, dict) else {f"{above}{name}": value}
    return flat
