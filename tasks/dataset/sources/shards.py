"""WebDataset tars made by others: each read once, from its first byte to its last, and never extracted.

Every sample in a tar is accounted for: one that is torn, unsafe, or lacks a member is an item with a fault.
Samples that a damaged tar has lost without a trace are counted where the files that img2dataset writes beside
it state how many there were; otherwise one of its faults states that the number is unknown. A tar that cannot
be read from its disk or server ends the build. Members keep their bytes, except for a byte order mark before
a caption.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from tasks.core.schema import Dataset, ShardsSource
from tasks.core.schema.source import PLACE
from tasks.core.stores import ObjectStat, absolute_location, is_web
from tasks.dataset.sources.fields import as_member, look_up, object_of
from tasks.dataset.sources.join import TableRows, TarMembers
from tasks.dataset.sources.protocol import Container, RawSample, fault_of
from tasks.dataset.sources.raw_files import Files
from tasks.dataset.sources.tar_samples import FIELD, REQUIRED, Roles, TarSamples, contents_of
from tasks.dataset.tar.reader import StoredSample
from tasks.dataset.tar.siblings import stated_samples
from tasks.dataset.version.rejects import Reason, Reject

GLANCED_AT = 8
"""The number of tars whose first keys a plan compares."""
LOOKED_AT = 1000
"""The number of samples whose `json` is searched for the fields that filters and splits name."""


class Shards:
    """One sample per run of adjacent members of one key; its `json` holds its fields."""

    passed_over: Mapping[str, int] = {}

    is_sequential = True

    def __init__(self, config: ShardsSource, dataset: Dataset, config_key: str) -> None:
        self._config = config
        self._required = REQUIRED[dataset.modality]
        self._roles = Roles.of(config, dataset, config_key)
        self._files = Files(config.path, (".tar",), f"{config_key}.path")
        self._joins: list[TableRows | TarMembers] = [
            (TableRows if join.is_table else TarMembers)(join, f"{config_key}.join[{number}]", self._roles)
            for number, join in enumerate(config.join)
        ]
        named = [name for name in (dataset.splits.group_column, dataset.splits.column) if name is not None]
        self._used = [*dataset.filter, *named]

    @property
    def location(self) -> str:
        return absolute_location(self._config.path)

    def columns(self) -> Sequence[str]:
        """Return the fields of joined tables and of the first samples' `json`, until each is found."""
        found: dict[str, None] = {}
        for join in self._joins:
            if isinstance(join, TableRows):
                found.update(dict.fromkeys(join.columns()))
        for files in (self._files, *(join.files for join in self._joins if isinstance(join, TarMembers))):
            first = files.names[0]
            if not set(self._used) <= found.keys():
                self._look_for_fields(files, first, found)
        return list(found)

    def doubts(self) -> Sequence[str]:
        """Report tars that begin with the same key, as shards do that each count their samples from zero."""
        seen: dict[str, str] = {}
        for tar in self._files.names[:GLANCED_AT] if self._config.key is None else ():
            with self._files.opened(tar) as file:
                samples = TarSamples(file, self._roles, size=-1, keeps=lambda member: False)
                key = next((sample.key for sample, _ in samples), None)
            if key in seen:
                alike = f"{seen[key]} and {tar} begin with the same key {key!r}"
                return [f"{alike}: of samples that share a key one is taken; key: place keeps them apart"]
            if key is not None:
                seen[key] = tar
        return ()

    def containers(self) -> Iterator[Container]:
        for file, stat in self._files.stats():
            if self._joins:
                stamps = "\0".join([stat.stamp, *(join.stamp(file) for join in self._joins)])
                stat = ObjectStat(stat.size, blake2b(stamps.encode(), digest_size=16).hexdigest())
            yield Container(file, stat)

    @property
    def is_joined(self) -> bool:
        """Whether a first sample takes an index of further files."""
        return bool(self._joins)

    def stated(self, container: Container) -> None:
        """A tar does not state how many samples it holds."""

    def items(self, container: Container) -> Iterator[RawSample]:
        torn: RawSample | None = None
        count = 0
        with self._files.opened(container.name, container.stat.size) as file:
            samples = TarSamples(file, self._roles, container.stat.size)
            for sample, fault in samples:
                count += 1
                item = self._item(container.name, sample, fault)
                if not sample.is_torn:
                    yield item
                    continue
                if torn is not None:
                    yield torn
                torn = item
        if samples.damage:
            yield from self._lost(container.name, count, torn, samples.damage)

    def _lost(self, tar: str, count: int, torn: RawSample | None, damage: str) -> Iterator[RawSample]:
        """Yield faults for what a damaged tar has lost besides the `count` samples that were found in it,
        the last of which, `torn`, has not been yielded yet. img2dataset's files may state the total."""
        location = self._files.location(tar)
        name, mark, query = location.partition("?") if is_web(location) else (location, "", "")
        base = self._files.store.location.rstrip("/") + "/"
        stated = stated_samples(self._files.store, name.removeprefix(base), mark + query)
        if stated is None:
            problem = f"{damage}; how many samples it has lost is unknown"
            lost = torn or RawSample(tar, tar, tar, {})
            yield lost._replace(fault=("source.unreadable", problem), more_lost=True)
            return
        if torn is not None:
            yield torn
        total, file = stated
        problem = f"{damage}, where {file} states {total:,} samples"
        for place in (f"{tar}:{number}" for number in range(count + 1, total + 1)):
            yield RawSample(place, place, tar, {}, fault=("source.unreadable", problem))

    def _item(self, tar: str, sample: StoredSample, fault: tuple[Reason, str] | None) -> RawSample:
        item = RawSample(f"{tar}:{sample.key}", sample.key or tar, tar, {}, fault=fault)
        try:
            return item if fault is not None else self._taken(tar, sample, item)
        except Reject as reject:
            return item._replace(fault=fault_of(reject))

    def _taken(self, tar: str, sample: StoredSample, item: RawSample) -> RawSample:
        """Return the item with key, members and fields; Reject when it lacks what its modality needs."""
        found = contents_of(sample)
        fields = self._fields(found)
        key = item.original_key
        if self._config.key is not None and self._config.key != PLACE:
            value = look_up(fields, self._config.key.removeprefix(FIELD))
            if value is None or value == "" or isinstance(value, dict | list):
                raise Reject("source.unreadable", f"{self._config.key} holds no key")
            key = str(value)
        before = len(fields)
        for join in self._joins:
            self._join(join.members(tar, key), found, fields)
        if len(fields) > before:
            found[self._roles.described] = as_member(fields)
        members = self._members(found, fields, sample.suffixes)
        used = {name: look_up(fields, name) for name in self._used}
        present = {name: value for name, value in used.items() if value is not None}
        if self._config.key == PLACE:
            key = f"{tar.removesuffix('.tar')}/{key}"
        return item._replace(original_key=key, fields=present, members=members)

    def _fields(self, found: Mapping[str, bytes]) -> dict[str, Any]:
        return object_of(found[self._roles.described]) if self._roles.described in found else {}

    def _join(self, partner: Mapping[str, bytes], found: dict[str, bytes], fields: dict[str, Any]) -> None:
        """Add the partner's members and fields where the sample has none."""
        roles = set(self._roles.assign(found))
        for suffix, content in partner.items():
            if suffix not in found and self._roles.role(suffix) not in roles:
                found[suffix] = content
        for name, value in self._fields(partner).items():
            fields.setdefault(name, value)

    def _members(
        self, found: Mapping[str, bytes], fields: Mapping[str, Any], suffixes: set[str]
    ) -> dict[str, bytes]:
        members = {role: found[suffix] for role, suffix in self._roles.assign(found).items()}
        for role, origin in self._roles.origins.items():
            if origin.startswith(FIELD):
                value = look_up(fields, origin.removeprefix(FIELD))
                if role == "txt" and isinstance(value, bool | list | dict):
                    raise Reject("caption.missing", f"{origin} is a {type(value).__name__}, not a text")
                if value is not None:
                    members[role] = as_member(value)
        for role, reason in self._required.items():
            if role not in members:
                given = self._roles.origins.get(role)
                lacking = f"no {role}" if given is None else f"no {role}, as it has no {given}"
                raise Reject(reason, f"{lacking}; its members: {', '.join(sorted(suffixes)[:12])}")
        if "txt" in members:
            members["txt"] = members["txt"].removeprefix(BOM_UTF8)
        if "json" in members and members["json"] is not found.get(self._roles.described):
            object_of(members["json"])
        try:
            members.get("txt", b"").decode()
        except UnicodeDecodeError as error:
            raise Reject("caption.encoding", f"not UTF-8 at byte {error.start + 1}") from None
        return members

    def _look_for_fields(self, files: Files, first: str, found: dict[str, None]) -> None:
        with files.opened(first) as file:
            for number, (sample, _) in enumerate(TarSamples(file, self._roles, size=-1)):
                try:
                    fields = self._fields(contents_of(sample))
                except Reject:
                    fields = {}  # the sample becomes a reject when it is read
                found.update(dict.fromkeys(fields))
                found.update({name: None for name in self._used if look_up(fields, name) is not None})
                if number >= LOOKED_AT or set(self._used) <= found.keys():
                    return
