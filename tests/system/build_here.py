"""Builds a config without worker processes and prints the digest of every file that must be the same anywhere.

For processors that are emulated: a worker process would start on the real one.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tasks.core.config import load_config
from tasks.dataset.building.builder import build
from tasks.dataset.building.conversion import convert
from tests.dataset.raw import contents


def map_here(function: Callable[[Any], Any], items: Iterable[Any], engines: Any, **_: Any) -> Iterator[Any]:
    return map(function, items)


if __name__ == "__main__":
    convert.map_groups = map_here  # type: ignore[assignment]
    version = build(load_config(Path(sys.argv[1]), sys.argv[2:])).version
    json.dump(contents(version), sys.stdout, indent=1)
