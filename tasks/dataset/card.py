"""`README.md` of a version: its content, for people, the Hub and `datasets.load_dataset` on its folder.

Without the first block, `load_dataset` would take `sizes.json` for data. That block also names the members:
from the first five samples alone, `datasets` would conclude that every conversation has as many images as
those five, and that every `json` has the same fields. The card holds counts and no sample, so the card of a
private version may be shown, and it holds nothing that depends on time, host or path. Its words are sealed in
every version: where they change, a repair can no longer make the card of an older version again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator

from tasks.core.units import count, counted, size
from tasks.dataset.manifest import Manifest

NEEDS = "4.7"
"""The first release of `datasets` that has the type json."""
_IMAGE = r"(?:jpg|png|webp)"
_EMBEDDINGS = "struct: [{name: image_emb, list: {list: float32}}, {name: text_emb, list: {list: float32}}]"
_MEMBERS = {
    _IMAGE: ("dtype: image", "the image"),
    rf"\d{{3}}\.{_IMAGE}": ("dtype: image", "images of the conversation, in their order"),
    r"txt": ("dtype: string", "what is said of the image or volume: a caption or a report, in UTF-8"),
    r"json": ("dtype: json", "further facts about the sample"),
    r"syn\.json": ("dtype: json", "synthetic captions (`syn_text`)"),
    r"paug\.json": ("dtype: json", "the parameters of each augmentation (`param_aug`)"),
    r"npz|pth\.gz": (
        _EMBEDDINGS,
        "the teachers' embeddings: a row of `image_emb` per augmentation; the first row of `text_emb` is of "
        "the caption, each other one of a synthetic caption",
    ),
    r"volume\.b2nd": ("dtype: binary", "the volume as int16 Hounsfield units (D, H, W), a Blosc2 array"),
    r"volume\.npy": ("list: {list: {list: int16}}", "the volume as int16 Hounsfield units (D, H, W)"),
}
"""For each member, by a pattern of its name: its type in `datasets`, and what it is."""
_JSON = {
    "chat": "the turns, as `messages: [{user, assistant}]`, their `ratings` and further facts",
    "volume_report": "name, patient, spacing, window, orientation, labels and what was done to the volume",
}
"""What `json` holds, for the modalities that define it."""


def card(manifest: Manifest, members: Collection[str], license_id: str | None) -> str:
    """The card of a version whose samples have some or all of these members."""
    names = sorted(members)
    return "\n".join([*_front_matter(manifest, names, license_id), *_body(manifest, names)])


def _front_matter(manifest: Manifest, names: list[str], license_id: str | None) -> Iterator[str]:
    """The YAML block that the Hub and `datasets` read; a JSON string is a YAML string too."""
    yield "---"
    if license_id is not None:
        yield f"license: {json.dumps(license_id)}"
    yield from ("configs:", "- config_name: default", "  data_files:")
    for split in manifest.splits:
        # `datasets` takes no dash in the name of a split.
        yield from (f"  - split: {json.dumps(split.replace('-', '_'))}", f'    path: "{split}/*.tar"')
    yield from ("dataset_info:", "  features:")
    for name in names:
        yield from (f"  - name: {json.dumps(name)}", f"    {_kind(name)[0]}")
    for name in ("__key__", "__url__"):
        yield from (f"  - name: {name}", "    dtype: string")
    yield from ("---", "")


def _body(manifest: Manifest, names: list[str]) -> Iterator[str]:
    samples = counted(manifest.accepted, "sample")
    tars = counted(manifest.shards, "tar")
    first = "train" if "train" in manifest.splits else min(manifest.splits, default="train")
    yield from (
        f"# {manifest.name}",
        "",
        f"{samples} of modality {manifest.modality} in {tars}, which any reader of WebDataset shards takes.",
        f"`datasets` {NEEDS} or newer loads this folder, or the repository that it was uploaded to:",
        "",
        "```python",
        "from datasets import load_dataset",
        "",
        f'samples = load_dataset("FOLDER", split="{first.replace("-", "_")}", streaming=True)',
        "```",
        "",
        "| split | samples | tars | size |",
        "|---|---|---|---|",
    )
    for name, split in manifest.splits.items():
        yield f"| {name} | {count(split.samples)} | {count(split.shards)} | {size(split.bytes)} |"
    yield from ("", "## Members", "", "A sample is named by its key, and each of its members `KEY.MEMBER`:")
    yield from ("", "| member | what it is |", "|---|---|")
    meanings: dict[str, list[str]] = {}
    for name in names:
        meaning = _JSON.get(manifest.modality) if name == "json" else None
        meanings.setdefault(meaning or _kind(name)[1], []).append(f"`{name}`")
    for meaning, alike in meanings.items():
        named = ", ".join(alike) if len(alike) <= 3 else f"{alike[0]} to {alike[-1]}"
        yield f"| {named} | {meaning} |"
    yield from ("", "## How it was made", "")
    yield (
        f"By Tarmac, in format {manifest.format}, from a source of kind {manifest.source.kind}. Of "
        f"{counted(manifest.read, 'raw sample')}, {count(manifest.accepted)} were accepted, "
        f"{count(manifest.filtered)} were left out by the dataset's own filter and "
        f"{count(manifest.rejected)} were rejected."
    )
    if manifest.passed_over:
        files = counted(sum(manifest.passed_over.values()), "file")
        yield f"{files} in the source's folders were read as nothing."
    if manifest.rejects:
        yield from ("", "| rejected because | samples |", "|---|---|")
        yield from (f"| {reason} | {count(number)} |" for reason, number in manifest.rejects.items())
    yield from (
        "",
        "`index/` and `samples/` hold a row per sample, `shards.parquet` the BLAKE3 of every tar, "
        f"`manifest.json` the digest of them all: `{manifest.digest}`.",
        "",
    )


def _kind(name: str) -> tuple[str, str]:
    found = (kind for pattern, kind in _MEMBERS.items() if re.fullmatch(pattern, name))
    return next(found, ("dtype: binary", "a further member"))
