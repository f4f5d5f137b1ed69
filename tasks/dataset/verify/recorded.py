"""build.json's record of the files beside the tars, and which of them are still as they were built.

Each is read whole and its BLAKE3 compared, so that no changed bit of a table goes unseen, whatever it means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tasks.core.process import available_cores
from tasks.core.stores import Unreachable
from tasks.dataset.build_info import is_sealed
from tasks.dataset.layout import BUILD
from tasks.dataset.verify.beside import Beside
from tasks.dataset.verify.faults import REMEMBER
from tasks.dataset.verify.ledger import Ledger

MOST_JSON = 64_000_000
"""Bytes of a JSON file: sizes.json takes 25 for each shard."""
_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)
_BLAKE3 = re.compile(r"[0-9a-f]{64}")


def read_json(files: Beside, name: str) -> Any:
    """The parsed file; OSError, or ValueError for anything that is no JSON."""
    try:
        return json.loads(files.read(name, MOST_JSON))
    except RecursionError:
        raise ValueError("it is nested without end") from None


def compare(files: Beside) -> Ledger:
    """Compare the files with their record; the ledger knows which are confirmed and which differ."""
    ledger = Ledger()
    record = _record(files, ledger)

    def one(name: str) -> tuple[str, str | None]:
        try:
            return name, _difference(files, name, record[name])
        except Unreachable:
            raise
        except OSError as error:
            return name, told(error)

    with ThreadPoolExecutor(available_cores()) as pool:
        found = dict(pool.map(one, record))
    ledger.confirmed = frozenset(name for name, problem in found.items() if problem is None)
    ledger.differing = {name: problem for name, problem in found.items() if problem is not None}
    return ledger


def told(error: OSError) -> str:
    """Why a file cannot be read, without the path of a temporary one."""
    if isinstance(error, FileNotFoundError):
        return "missing"
    return f"unreadable: {error.strerror or error}"


def _difference(files: Beside, name: str, expected: Mapping[str, Any]) -> str | None:
    size = files.size(name)
    if size != expected["bytes"]:
        return f"{size:,} bytes, {expected['bytes']:,} when it was built"
    blake3 = files.blake3(name)
    if blake3 != expected["blake3"]:
        return f"its bytes are not those that were built: BLAKE3 {blake3[:12]}, not {expected['blake3'][:12]}"
    return None


def _record(files: Beside, ledger: Ledger) -> dict[str, Mapping[str, Any]]:
    try:
        build = read_json(files, BUILD)
    except Unreachable:
        raise
    except OSError as error:
        ledger.add(BUILD, told(error), REMEMBER)
        return {}
    except ValueError:
        build = None
    if not isinstance(build, dict):
        ledger.add(BUILD, "torn: it is no JSON object", REMEMBER)
        return {}
    if not _is_sound(build):
        ledger.add(BUILD, "its checksums of itself and others are wrong: damaged, or of an older Tarmac")
        return {}
    return dict(build["files"])


def _is_sound(build: Mapping[str, Any]) -> bool:
    try:
        return is_sealed(build) and all(_is_entry(name, entry) for name, entry in build["files"].items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _is_entry(name: Any, entry: Any) -> bool:
    """A plain name, so that nothing outside of the version is opened, with a size and a checksum."""
    if not _NAME.fullmatch(name):
        return False
    is_size = isinstance(entry["bytes"], int) and not isinstance(entry["bytes"], bool)
    return is_size and isinstance(entry["blake3"], str) and bool(_BLAKE3.fullmatch(entry["blake3"]))
