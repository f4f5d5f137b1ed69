"""`quality_peer.py FOLDER OUT [issues]`: perceptual hashes of a folder's pictures by imagehash and imagededup,
and with `issues` what cleanvision finds, as JSON: names of files by kind, and sets of names that are copies."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

KINDS = ("blurry", "low_information", "dark", "light", "odd_aspect_ratio")


def main(folder: str, out: str, *more: str) -> None:
    import imagehash
    from imagededup.methods import PHash
    from PIL import Image

    paths = sorted(path for path in Path(folder).iterdir() if path.suffix != ".csv")
    theirs = PHash(verbose=False)
    hashes = {
        path.name: (str(imagehash.phash(Image.open(path))), theirs.encode_image(image_file=path))
        for path in paths
    }
    Path(out).write_text(json.dumps({"hashes": hashes, **(issues(paths) if more else {})}))


def issues(paths: list[Path]) -> dict[str, Any]:
    from cleanvision import Imagelab

    lab = Imagelab(filepaths=[str(path) for path in paths])
    lab.find_issues(n_jobs=1, verbose=False)
    found = {kind: lab.issues.index[lab.issues[f"is_{kind}_issue"]] for kind in KINDS}
    sets = [one for kind in ("exact", "near") for one in lab.info[f"{kind}_duplicates"]["sets"]]
    return {
        "kinds": {kind: [Path(path).name for path in names] for kind, names in found.items()},
        "copies": [[Path(path).name for path in one] for one in sets],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
