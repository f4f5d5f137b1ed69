"""Makes a release in dist/: sdist, wheel, bill of materials and their checksums. It publishes nothing.

The same commit gives the same bytes, whoever makes it: both archives are built from the commit's own files,
not from the folder with what else lies there, and every time in them is that of the commit. The bill of
materials names the packages that this environment has for Tarmac and its extras; another platform has others.

    python deploy/release.py [FOLDER]     # into dist without FOLDER
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from notice import extras_by_package
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
SUMS = "SHA256SUMS"
NEXT = """
Nothing is published. When these files are what you want:
  git tag -a v{version} -m 'Tarmac {version}' {commit} && git push origin v{version}
  attach all four to the release page of the tag; whoever downloads them checks: sha256sum --check {sums}
  or upload to a package index of your own: twine upload --repository-url ADDRESS {archives}
PyPI has another project under the name `tarmac`, so `twine upload` without an address is refused there.
"""
CHECK = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
sys.exit(error and f"it is not CycloneDX 1.6: {error}")
"""


class Refused(Exception):
    """The checkout is not what a release may be made from; the message is for whoever called."""


def release(folder: Path) -> list[Path]:
    """Write the files of a release into a folder and return them, SHA256SUMS last."""
    if changes := _git("status", "--porcelain").strip():
        raise Refused(f"commit these or take them away; a release is made from a commit alone:\n{changes}")
    if f"\n## {version('tarmac')} - " not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        raise Refused(f"CHANGELOG.md has no heading `## {version('tarmac')} - DATE`")
    env = {**os.environ, "SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct").strip()}
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        _run("git", "clone", "--quiet", "--shared", str(ROOT), str(place / "clone"), env=env)
        sdist = _built("sdist", place / "clone", place / "made", env)
        with tarfile.open(sdist) as archive:
            archive.extractall(place, filter="data")
        wheel = _built("wheel", place / sdist.name.removesuffix(".tar.gz"), place / "made", env)
        _run(sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel), env=env)
        bill = place / "made" / f"tarmac-{version('tarmac')}.cdx.json"
        bill.write_text(json.dumps(bill_of_materials(env), indent=1, sort_keys=True) + "\n", encoding="utf-8")
        made = [sdist, wheel, bill]
        sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made)
        (place / "made" / SUMS).write_text(sums, encoding="ascii")
        folder.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.move(path, folder / path.name)) for path in (*made, place / "made" / SUMS)]


def bill_of_materials(env: Mapping[str, str]) -> dict[str, Any]:
    """Return what CycloneDX reports of this environment, without what only Tarmac's developers need.

    The property `tarmac:extras` of a component names the extras that need it. References to websites and
    registries are left out: a package has the same name and version wherever it comes from.
    """
    words = ["environment", "--no-validate", "--output-reproducible"]
    pyproject = str(ROOT / "pyproject.toml")
    told = _cyclonedx("-m", "cyclonedx_py", *words, "--pyproject", pyproject, sys.executable, env=env)
    bill: dict[str, Any] = json.loads(told)
    extras = extras_by_package()
    bill["components"] = [one for one in bill["components"] if canonicalize_name(one["name"]) in extras]
    for component in bill["components"]:
        named = extras[canonicalize_name(component["name"])]
        component["scope"] = "required" if named == ["base"] else "optional"
        component["properties"] = [{"name": "tarmac:extras", "value": " ".join(named)}]
    kept = {component["bom-ref"] for component in bill["components"]}
    root = bill["metadata"]["component"]["bom-ref"]
    bill["dependencies"] = [
        {**one, "dependsOn": [ref for ref in one.get("dependsOn", []) if ref in kept]}
        for one in bill["dependencies"]
        if one["ref"] in {root, *kept}
    ]
    for component in (*bill["components"], *bill["metadata"]["tools"]["components"]):
        component.pop("externalReferences", None)
    _cyclonedx("-c", CHECK, env=env, given=json.dumps(bill))
    return bill


def _cyclonedx(*words: str, env: Mapping[str, str], given: str = "") -> str:
    """Call a Python that has CycloneDX. This environment has not: it needs an extra of jsonschema that would
    add seconds to each start of Prefect."""
    uv, pins = str(Path(sys.executable).with_name("uv")), str(ROOT / "constraints.txt")
    tool = ["tool", "run", "--quiet", "--python", sys.executable, "--constraints", pins]
    return _run(uv, *tool, "--with", "cyclonedx-bom", "python", *words, env=env, given=given)


def _built(kind: str, source: Path, folder: Path, env: Mapping[str, str]) -> Path:
    """The archive that hatchling makes of a source folder."""
    before = set(folder.glob("*"))
    _run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder), cwd=source, env=env)
    (archive,) = set(folder.glob("*")) - before
    return archive


def _git(*words: str) -> str:
    return _run("git", *words, env=os.environ)


def _run(*command: str, env: Mapping[str, str], cwd: Path = ROOT, given: str = "") -> str:
    done = subprocess.run(command, cwd=cwd, env=dict(env), input=given, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    try:
        made = release(folder)
    except Refused as reason:
        sys.stderr.write(f"✗ no release: {reason}\n")
        return 1
    for path in made:
        sys.stdout.write(f"✓ {path}  {path.stat().st_size:,} bytes\n")
    archives = " ".join(str(path) for path in made[:2])
    commit = _git("rev-parse", "--short=12", "HEAD").strip()
    sys.stdout.write(NEXT.format(version=version("tarmac"), commit=commit, archives=archives, sums=SUMS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
