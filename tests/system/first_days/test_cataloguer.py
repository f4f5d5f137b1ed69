"""The cataloguer: pictures that a table of another program names, and collections as they are published."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from tests.dataset.raw import collections
from tests.system.first_days.person import LFS_POINTER, Person, photo

pytestmark = pytest.mark.system
COUNT = 60


def catalogue(folder: Path) -> None:
    """What Excel on Windows exports: semicolons, cp1252 and the paths of the machine that it ran on."""
    (folder / "Bilder" / "grün").mkdir(parents=True)
    lines = ["Datei;Text;Art"]
    for n in range(COUNT):
        (folder / "Bilder" / "grün" / f"{n:03d}.jpg").write_bytes(photo(n, "JPEG"))
        kind = ("Ähre", "Möwe")[n % 2]
        lines.append(f"C:\\Daten\\Bilder\\grün\\{n:03d}.jpg;ein größeres Bild {n};{kind}")
    (folder / "katalog.csv").write_bytes("\r\n".join(lines).encode("cp1252"))


WRONG_CHANGES = {
    "dataset.source.caption=Texte": "katalog.csv has no column 'Texte'; did you mean Text?",
    "dataset.source.caption=caption": "katalog.csv has no column 'caption'; there are: Datei, Text, Art",
    "dataset.source.delimiter=,": "no valid YAML: did not find expected node content; a text goes into quotes",
    'dataset.source.delimiter=","': "katalog.csv has no ',', but ';'; write delimiter: ';'",
    "dataset.source.root=raw/Fotos": "dataset.source.root: there is no folder raw/Fotos",
}


@pytest.mark.proof
def test_a_catalogue_of_another_machine(person: Person) -> None:
    """Three of its pictures are not what they should be: gone, cut short, and not fetched by Git LFS."""
    catalogue(person.folder / "raw")
    pictures = person.folder / "raw/Bilder/grün"
    (pictures / "000.jpg").unlink()
    os.truncate(pictures / "003.jpg", 900)
    (pictures / "004.jpg").write_text(LFS_POINTER)

    found = person.types("init", "raw")
    assert "delimiter ;: between the cells of katalog.csv" in found
    assert "encoding  cp1252: not UTF-8; so it reads “ein größeres Bild 0”" in found
    assert (
        "image     Datei: paths with Windows' backslashes, such as C:\\Daten\\Bilder\\grün\\000.jpg" in found
    )
    assert "root      raw: 19 of 20 looked at are there, and 0 below the table's folder" in found
    assert "label     Art: 2 values, Ähre, Möwe" in found
    for change, says in WRONG_CHANGES.items():
        said = person.types("plan", "configs/raw.yaml", "--set", change, expecting=2)
        assert says in said and said.count("\n") == 1, said
    torn = "katalog.csv:5: jpg: OSError: image file is truncated"
    pointer = "katalog.csv:6: it is a Git LFS pointer and not the file itself (run git lfs pull where it was cloned)"
    planned = person.types("plan", "configs/raw.yaml")
    assert f"1 of 20 samples tried: image.undecodable   {torn}" in planned
    assert f"1 of 20 samples tried: image.not_an_image   {pointer}" in planned

    built = person.types("build", "configs/raw.yaml")
    assert "60 read = 57 accepted + 0 filtered + 3 rejected (5.0%, budget 5.0%)" in built
    for says in (
        "      1 member.missing         katalog.csv:2: no such file: 'raw/Bilder/grün/000.jpg'\n",
        f"      1 image.undecodable      {torn}",
        f"      1 image.not_an_image     {pointer}\n",
        "  rejects  tarmac rejects data/raw lists all; mend the sources and run again: only these are redone\n",
    ):
        assert says in built
    listed = person.types("rejects", "data/raw")
    assert "3 rejects: 1 member.missing, 1 image.undecodable, 1 image.not_an_image\n" in listed
    assert "katalog.csv:5  Bilder/grün/003.jpg  jpg: OSError" in listed
    assert person.types("look", "data/raw").endswith("data/raw/look.html\n")
    captions = {one["txt"].decode() for split in ("train", "val") for one in person.samples(split)}
    assert captions == {f"ein größeres Bild {n}" for n in range(COUNT) if n not in (0, 3, 4)}


def tables(folder: Path) -> None:
    """The same pictures by a table in UTF-16 and by one that is compressed, and those of COCO and Flickr8k."""
    for place in ("utf16/img", "packed/img", "flickr/Images"):
        collections.images(folder / place, [f"{n:03d}.jpg" for n in range(20)])
    rows = [f"img\\{n:03d}.jpg;größer als {n}" for n in range(20)]
    (folder / "utf16/liste.csv").write_bytes("\r\n".join(["Datei;Text", *rows]).encode("utf-16"))
    rows = [f"img/{n:03d}.jpg,picture {n}" for n in range(20)]
    (folder / "packed/table.csv.gz").write_bytes(gzip.compress("\n".join(["file,caption", *rows]).encode()))
    rows = [f"{n:03d}.jpg,{collections.text(n, one)}" for n in range(20) for one in range(5)]
    quoted = [row.replace(",", ',"', 1) + '"' for row in rows]
    (folder / "flickr/captions.txt").write_text("\n".join(["image,caption", *quoted]))
    collections.coco(folder / "coco", {"train2017": range(16), "val2017": range(16, 20)})
    (folder / "unfetched").mkdir()
    (folder / "unfetched/captions.csv").write_text(LFS_POINTER)


FOUND = {
    "utf16": [
        "liste.csv: 20 rows; columns Datei, Text",
        "paths with Windows' backslashes relative to the table's",
    ],
    "packed": ["table.csv.gz: 20 rows; columns file, caption", "20 of 20 looked at are there"],
    "coco": [
        "coco/annotations/{captions_train2017,captions_val2017}.json: 2 tables, 100 rows",
        "fields    the tables are named after splits",
        "root      coco: 20 of 20 looked at are there",
        "captions  all: several rows share an image, which is stored once, with all of theirs",
    ],
    "flickr": [
        "flickr/captions.txt: 100 rows; columns image, caption",
        "root      flickr/Images: 20 of 20 looked at are there, and 0 below the table's folder",
        "captions  all: several rows share an image, which is stored once, with all of theirs",
    ],
}


@pytest.mark.proof
def test_tables_and_collections_as_they_are_published(person: Person) -> None:
    """Up to what a build would do; a table that Git LFS has not fetched is named."""
    tables(person.folder)
    for name, says in FOUND.items():
        found = person.types("init", name)
        assert [one for one in says if one not in found] == [] and "\n!" not in found, found
    for name in ("coco", "flickr"):
        planned = person.types("plan", f"configs/{name}.yaml")
        assert "20 raw samples: 0 filtered, 0 rejected unopened" in planned and "\n!" not in planned
    pointers = "Git LFS pointers and not the files themselves (1 of 1 looked at, such as captions.csv)"
    assert person.types("init", "unfetched", expecting=2) == (
        f"✗ PATH: unfetched holds {pointers}: run git lfs pull there\n"
    )
