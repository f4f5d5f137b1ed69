"""Versions that their names do not lead to any more: no `current`, or a folder that was renamed."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tasks.core.findings import Finding
from tasks.core.stores import ABSENT, is_remote
from tasks.dataset import versions
from tasks.dataset.layout import VERSION_NAME
from tasks.dataset.manifest import version_name
from tasks.dataset.verify.faults import BUILD_AGAIN, RESEND, fault
from tasks.dataset.verify.place import store_at
from tasks.dataset.verify.recorded import MOST_JSON
from tasks.dataset.verify.tables import MANIFEST

CURRENT = "current"


def dataset_of(version: str) -> str:
    """The dataset that a version's folder lies in, if it lies in one."""
    return os.path.dirname(os.path.dirname(version))


def is_current(dataset: str, version: str) -> bool:
    """Whether the dataset's link leads to this version, whose path is a real one."""
    path = f"{dataset}/{CURRENT}"
    return os.path.islink(path) and os.path.realpath(path) == version


def is_version_name(version: str) -> bool:
    """Whether the folder lies where a dataset has its versions, and is called like one."""
    folder, name = os.path.split(version)
    return os.path.basename(folder) == "versions" and VERSION_NAME.fullmatch(name) is not None


def lost(folder: str, dataset: str, problem: str, wanted: str = "") -> Finding:
    """A dataset in `folder`, that commands are to call `dataset`, has no current version; it was to be
    `wanted`."""
    found = fault("manifest.invalid", BUILD_AGAIN, {"file": CURRENT}, problem=problem)
    if is_remote(folder):
        return replace(found, remedy=RESEND)
    renamed = misnamed(folder)
    others = [one.name for one in versions.listed(Path(folder)) if os.path.isfile(one / MANIFEST)]
    if wanted in renamed or (renamed and not others):
        name = wanted if wanted in renamed else min(renamed)
        found = renamed_back(found, f"{dataset}/versions/{renamed[name]}", name)
        then = "" if name == wanted else f", then tarmac versions DATASET rollback {name}"
        return replace(found, remedy=found.remedy + then)
    if others:
        newest = f"tarmac versions DATASET rollback {others[0]} makes the newest version there current"
        command = f"tarmac versions {shlex.quote(dataset)} rollback {others[0]}"
        return replace(found, remedy=f"{newest}, {BUILD_AGAIN}", command=command)
    return found


def misnamed(dataset: str) -> Mapping[str, str]:
    """Folders in `versions` that are not called as a version is, by the name that theirs should have."""
    store, found = store_at(dataset), {}
    with contextlib.suppress(OSError):
        for name in store.entries("versions")[0]:
            if not VERSION_NAME.fullmatch(name) and store.stat(f"versions/{name}/{MANIFEST}") != ABSENT:
                found[version_name(store.read(f"versions/{name}/{MANIFEST}", MOST_JSON))] = name
    return found


def renamed_back(found: Finding, version: str, name: str) -> Finding:
    """The finding with the way out for a version's folder that should be called `name`."""
    old = os.path.basename(version)
    target = os.path.join(os.path.dirname(version), name)
    if os.path.lexists(target):
        return replace(found, remedy=f"move {old} away or delete it: {name} stands beside it")
    command = f"mv {shlex.quote(version)} {shlex.quote(target)}"
    return replace(found, remedy=f"rename the folder {old} back to {name}", command=command)
