"""Writes NOTICE: the licence of every package that pip installs with Tarmac, and the conditions of some.

The list comes from the metadata of the installed distributions, so it is that of one platform, with the
versions that constraints.txt pins. Metadata give the licence of a package's source; what its wheel holds
besides is in CARRIED. A licence that nobody has looked at ends the script: it never guesses one.

    python deploy/notice.py           # writes NOTICE
    python deploy/notice.py --check   # ends with 1 where NOTICE differs from what it would write
"""

from __future__ import annotations

import itertools
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NOTICE = Path(__file__).resolve().parents[1] / "NOTICE"
PERMISSIVE = {
    *("0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python"),
    *("ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Zlib"),
}
"""These ask for no more than that their notice is kept. BSD stands where metadata do not say which one."""
GCC = "GPL-3.0-or-later WITH GCC-exception-3.1"
LGPL = "LGPL-2.1-or-later"
NVIDIA = "LicenseRef-NVIDIA-Proprietary"
CONDITIONS = {
    "GPL-2.0-only": (
        "GNU GPL 2 holds for this wheel as a whole, because it contains x265. It does not restrict use. Who "
        "passes it on, for example in a container image, must offer its source under the same licence. The "
        "extra `all` includes `heic`; without `heic`, a build rejects HEIC files and needs none of this."
    ),
    LGPL: (
        "GNU LGPL 2.1 or later, for the named libraries, each in a file of its own, which may be replaced. "
        "Who passes them on adds the licence, and their source or an offer of it."
    ),
    "LGPL-3.0-only": "GNU LGPL 3, for the named files. The conditions are those of LGPL 2.1.",
    GCC: "Run-time libraries of GCC. The exception lets programs of any licence use and contain them.",
    "MPL-2.0": (
        "Mozilla Public License 2.0. Its files may be used in works of any licence. Who passes on changed "
        "ones passes on their source."
    ),
    "Artistic-1.0-Perl": (
        "The Artistic License, or GNU GPL at the user's choice. A changed version says what was changed."
    ),
    NVIDIA: (
        "NVIDIA's agreements, by the packages' metadata or for the named files. Read them before you pass on "
        "an image with CUDA. PyTorch's wheels for CPUs need none of the packages `nvidia-…`."
    ),
}
"""What a licence that is not permissive asks of users."""
CARRIED = {
    "blosc2": {"libtcc": LGPL},
    "botocore": {"cacert.pem": "MPL-2.0"},
    "grpcio": {"roots.pem": "MPL-2.0"},
    "numpy": {"libgfortran": GCC, "libquadmath": LGPL},
    "pillow-heif": {"libde265": "LGPL-3.0-only", "libheif": "LGPL-3.0-only", "libx265": "GPL-2.0-only"},
    "scikit-learn": {"libgomp": GCC},
    "scipy": {"libgfortran": GCC, "libquadmath": LGPL},
    "setuptools": {"autocommand": "LGPL-3.0-only", "_validate_pyproject": "MPL-2.0"},
    "torch": {"libgfortran": GCC, "libgomp": GCC},
    "torchvision": {
        "libcudart": NVIDIA,
        "libnvjpeg": NVIDIA,
    },
    "triton": {"libcupti": NVIDIA, "ptxas": NVIDIA},
    "wandb": {"wandb-core": "MPL-2.0"},
}
"""Files in wheels under another licence than their package; wandb-core has modules of HashiCorp's in it."""
STATED = {
    "cuda-toolkit": NVIDIA,
    "nvidia-cusparselt-cu13": NVIDIA,
    "python-dateutil": "Apache-2.0 AND BSD-3-Clause",
    "scipy": "BSD-3-Clause",
    "text-unidecode": "Artistic-1.0-Perl",
    "webdataset": "BSD-3-Clause",
}
"""Licences of packages whose metadata have none, or another one than their licence file."""
WORDS = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0 license": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd license": "BSD",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
}
"""How older metadata write a licence, in their field License or as a classifier."""


class UnknownLicence(Exception):
    """A distribution's metadata name no licence that this script knows."""


def extras_by_package() -> dict[str, list[str]]:
    """Return what Tarmac installs here, by name, each with the extras that need it: `base` is all of them."""
    offered = distribution("tarmac").metadata.get_all("Provides-Extra") or []
    needed: defaultdict[str, list[str]] = defaultdict(list)
    for extra in ("base", *sorted(set(offered) - {"all"})):
        for name in _closure(extra):
            if needed[name][:1] != ["base"]:
                needed[name].append(extra)
    return dict(sorted(needed.items()))


def licence(name: str) -> str:
    """Return a package's licence as an SPDX expression, or raise UnknownLicence."""
    metadata = distribution(name).metadata
    classifiers = [line for line in metadata.get_all("Classifier") or [] if line.startswith("License ::")]
    declared = [str(metadata[key]) for key in ("License-Expression", "License") if key in metadata]
    named = [line.rpartition(" :: ")[2] for line in classifiers]
    for words in (STATED.get(name, ""), *declared, *named):
        expression: str = WORDS.get(words.lower(), words)
        if all(part in PERMISSIVE or part in CONDITIONS for part in parts(expression)):
            return expression
    raise UnknownLicence(
        f"{name}: its metadata give {[*declared, *classifiers]}; read its licence file and add it to STATED, "
        "or its licence to PERMISSIVE or CONDITIONS, in deploy/notice.py"
    )


def parts(expression: str) -> list[str]:
    """Return the licences that an expression names. LLVM's exception only takes conditions away."""
    plain = expression.replace(" WITH LLVM-exception", "")
    return [part.strip(" ()") for part in re.split(r" AND | OR ", plain)]


def render(packages: dict[str, list[str]]) -> str:
    """Return the text of NOTICE."""
    return "\n\n".join((*_head(), *_conditions(packages), *_list(packages))) + "\n"


def _closure(extra: str) -> set[str]:
    """The names of what the base, or an extra with the base, needs in this environment."""
    seen: set[tuple[str, str]] = set()
    todo = {("tarmac", extra)}
    while todo:
        name, wanted = todo.pop()
        seen.add((name, wanted))
        for requirement in map(Requirement, distribution(name).requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": wanted}):
                found = {(canonicalize_name(requirement.name), part) for part in ("", *requirement.extras)}
                todo |= found - seen
    return {str(name) for name, _ in seen} - {"tarmac"}


def _head() -> Iterator[str]:
    yield "Tarmac\nLicensed under the Apache License, Version 2.0; its text is in LICENSE."
    yield _wrapped(
        "Tarmac's wheel and sdist contain Tarmac's own files alone. pip installs the packages below beside "
        "it, each under a licence of its own. `python deploy/notice.py` writes this list from the metadata "
        "of the versions in constraints.txt, as installed on Linux (x86-64) with Python 3.11; other "
        "platforms install fewer or other packages. Brackets hold the extras of Tarmac that need a package; "
        "what is in `base` is always installed."
    )


def _conditions(packages: dict[str, list[str]]) -> Iterator[str]:
    yield "LICENCES THAT ASK FOR MORE THAN THEIR NOTICE"
    for condition, meaning in CONDITIONS.items():
        holders = [(name, extras) for name, extras in packages.items() if condition in parts(licence(name))]
        for name, files in CARRIED.items():
            if named := [file for file, other in files.items() if other == condition]:
                holders.append((f"{', '.join(named)} in {name}", packages[name]))
        yield f"{condition}\n{_wrapped(meaning, '  ')}\n{_wrapped(_with_extras(holders), '  > ')}"


def _list(packages: dict[str, list[str]]) -> Iterator[str]:
    yield "ALL PACKAGES, BY THE LICENCE OF THEIR SOURCE"
    by_licence = defaultdict(list)
    for name, extras in packages.items():
        by_licence[licence(name)].append((name, extras))
    for expression, holders in sorted(by_licence.items()):
        yield f"{expression}\n{_wrapped(_with_extras(holders), '  ')}"


def _with_extras(holders: list[tuple[str, list[str]]]) -> str:
    """`a (base); b, c (train)`: names that follow each other and have the same extras share a bracket."""
    groups = itertools.groupby(holders, key=lambda holder: holder[1])
    return "; ".join(
        f"{', '.join(name for name, _ in group)} ({', '.join(extras)})" for extras, group in groups
    )


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text,
        118,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        break_on_hyphens=False,
        break_long_words=False,
    )


def main() -> int:
    text = render(extras_by_package())
    if sys.argv[1:] != ["--check"]:
        NOTICE.write_text(text, encoding="utf-8")
    elif not NOTICE.exists() or NOTICE.read_text(encoding="utf-8") != text:
        sys.stderr.write("NOTICE is not that of the installed packages: python deploy/notice.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
