"""The image: a linter finds nothing, Compose's schema takes the file, and its steps give a command that works."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from tests.release.built import ROOT
from tests.release.dockerfile import Image, instructions

DOCKERFILE = ROOT / "deploy/Dockerfile"
COMPOSE = ROOT / "deploy/compose.yaml"
COMMIT = "585a2809c1f4"


def checked(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """A checker of this environment, with its exit code."""
    tool = Path(sys.executable).with_name(str(words[0]))
    return subprocess.run([tool, *map(str, words[1:])], cwd=ROOT, capture_output=True, text=True, timeout=100)


def test_a_linter_of_dockerfiles_finds_nothing(tmp_path: Path) -> None:
    found = checked("hadolint", DOCKERFILE)
    assert (found.returncode, found.stdout) == (0, "")
    worse = tmp_path / "Dockerfile"
    worse.write_text(DOCKERFILE.read_text().replace("--constraint constraints.txt hatchling", "hatchling"))
    assert "DL3013" in checked("hadolint", worse).stdout, "it would not see a version that is not pinned"


def test_the_schema_of_compose_takes_the_file(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(COMPOSE.read_text().replace("depends_on:", "depend_on:"))
    found = checked("check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE, wrong).stdout
    assert "depend_on" in found and str(COMPOSE) not in found, found


def test_compose_builds_from_the_dockerfile_with_extras_that_exist() -> None:
    arguments = {
        rest.partition("=")[0] for word, rest in instructions(DOCKERFILE.read_text()) if word == "ARG"
    }
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    for name, extra in {"server": "prefect", "worker": "all"}.items():
        built = services[name]["build"]
        assert (COMPOSE.parent / built["context"] / built["dockerfile"]).resolve() == DOCKERFILE
        assert set(built["args"]) <= arguments and built["args"]["EXTRAS"] == extra


def test_its_version_is_that_of_the_package() -> None:
    assert ("ARG", f"VERSION={version('tarmac')}") in list(instructions(DOCKERFILE.read_text()))


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The image with the base alone."""
    with ExitStack() as roots:
        yield Image(DOCKERFILE, ROOT, roots, COMMIT=COMMIT)


@pytest.mark.system
def test_it_runs_tarmac_as_a_user_who_is_not_root(image: Image) -> None:
    container = image.last
    assert container.contain("--version").output == f"tarmac {version('tarmac')} ({COMMIT})\n"
    assert "verify" in container.contain().output, "without words it shows the help"
    assert container.run(["id", "-u"]).output == "1000\n"
    assert container.run(["touch", "/opt/tarmac/bin/tarmac"]).code == 1, "it could change its own code"
    assert container.run(["touch", "/data/kept", "/project/made"]).code == 0
    assert container.run(["python", "-c", "import torch"]).code == 1
    assert container.labels["org.opencontainers.image.version"] == version("tarmac")
    assert container.labels["org.opencontainers.image.revision"] == COMMIT


@pytest.mark.system
@pytest.mark.parametrize("user", ["1000:1000", "4242:4242"])
def test_it_verifies_a_dataset(image: Image, digits_dataset: Path, user: str) -> None:
    """As its own user, and as one of `docker run --user`, who has no account in the image."""
    container, name = image.last, f"digits-{user.partition(':')[0]}"
    container.root.put(digits_dataset, f"/project/{name}")
    sound = container.contain("verify", name, user=user)
    assert sound.code == 0 and "is sound" in sound.output, sound.output
    shard = container.root.folder / f"project/{name}/current/train/000001.tar"
    content = bytearray(shard.read_bytes())
    content[2000] ^= 1
    shard.write_bytes(content)
    damaged = container.contain("verify", name, user=user)
    assert damaged.code == 1 and "shard.checksum" in damaged.output, damaged.output


@pytest.mark.system
def test_a_user_without_an_account_writes_into_a_folder_of_his_own(
    image: Image, digits_dataset: Path
) -> None:
    container = image.last
    container.root.put(digits_dataset, "/project/looked")
    assert container.run(["chown", "--recursive", "4242:4242", "looked"], user="0:0").code == 0
    looked = container.contain("look", "looked", user="4242:4242", HOME="/data")
    assert looked.code == 0, looked.output
    assert (container.root.folder / "project/looked/look.html").stat().st_uid == 4242


@pytest.mark.system
def test_the_argument_adds_an_extra(image: Image) -> None:
    """Done again in its build stage, where all of the base is installed."""
    stage = image.stages["build"]
    stage.arguments["EXTRAS"] = "doctor"
    *_, installs = [rest for word, rest in instructions(DOCKERFILE.read_text()) if "EXTRAS:+" in rest]
    assert stage.run(["test", "-e", "/opt/tarmac/bin/py-spy"]).code == 1
    image.do(stage, "RUN", installs)
    assert stage.run(["/opt/tarmac/bin/py-spy", "--version"]).code == 0
