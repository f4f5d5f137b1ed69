"""The few lines of Python that load a version in other libraries, with its own paths.

They are printed by `tarmac look DATASET --load`; the card of a version has those for `datasets` alone,
because its words are sealed. The split with the most samples stands in them.
"""

from __future__ import annotations

from pathlib import Path

from tasks.dataset.version.layout import FOREIGN, shard_name
from tasks.dataset.version.manifest import read_manifest

WEBDATASET = """\
import webdataset as wds

for sample in wds.WebDataset({tars!r}, shardshuffle=False):
    print(sample["__key__"], [name for name in sample if not name.startswith("__")])
    break
"""
PYTORCH = """\
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

from tasks.loader.indexed import IndexedReader


class IndexedSamples(Dataset):
    def __init__(self, version, split):
        self.reader = IndexedReader(Path(version), split)

    def __len__(self):
        return len(self.reader)

    def __getitem__(self, number):
        return self.reader.read(number).members  # bytes by name: decode and transform them here


if __name__ == "__main__":
    samples = IndexedSamples({version!r}, {split!r})
    batches = DataLoader(samples, batch_size=8, shuffle=True, num_workers=2, collate_fn=list)
    print(len(samples), sorted(next(iter(batches))[0]))
"""
DATASETS = """\
from datasets import load_dataset

samples = load_dataset({version!r}, split={name!r}, streaming=True)
print(next(iter(samples)).keys())
"""


def loading_snippets(version: Path) -> dict[str, str]:
    """Return a program for each library, by the library's name, that loads the largest split of a version, by
    the path that is given; DataError where the manifest cannot be read.

    Tars of others that are only indexed, where they lie, are read by the index alone.
    """
    splits = read_manifest(version).splits
    split = max(splits, key=lambda name: splits[name].samples)
    place, last = str(version), splits[split].shards - 1
    tars = f"{place}/{shard_name(split, 0)}"
    if last:
        tars = f"{place}/{split}/{{000000..{last:06d}}}.tar"
    programs = {"PyTorch, at random by the index": PYTORCH.format(version=place, split=split)}
    if (version / FOREIGN).exists():
        return programs
    return {
        "webdataset, in order": WEBDATASET.format(tars=tars),
        **programs,
        "Hugging Face datasets": DATASETS.format(version=place, name=split.replace("-", "_")),
    }
