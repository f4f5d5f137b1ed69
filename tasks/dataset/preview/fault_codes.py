"""What each code of verify means, in words for a page: what was found, what it costs, and what it is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class FaultCode(NamedTuple):
    """A title, what it means for whoever reads the data, and how `This is not …` goes on: what one might
    wrongly take it for."""

    title: str = ""
    means: str = ""
    is_not: str = ""


FAULT_CODES: Mapping[str, FaultCode] = {
    "manifest.invalid": FaultCode(
        "The tables do not hold together",
        "The manifest or a file beside the shards (tables, sizes, build.json) is missing, torn, changed "
        "since the build, or from a newer Tarmac. What it says cannot be relied on.",
        "damage to pictures or texts: the shards may all be whole.",
    ),
    "shard.missing": FaultCode(
        "A shard is not there",
        "A tar that belongs to the dataset is not in its place, and its samples with it.",
        "damage within a file: a copy that stopped, or a file that was moved, is the usual cause.",
    ),
    "shard.extra": FaultCode(
        "There is a shard too many",
        "A tar in the folder does not belong to the version. Programs that take all tars there read it too.",
        "a loss: the dataset's own shards are judged without it.",
    ),
    "shard.truncated": FaultCode(
        "A shard is cut",
        "The tar ends within a member, lacks the blocks that end it, or goes on behind them. Cut between two "
        "members, it looks whole to most readers, and the rest of its samples is silently left out.",
        "a changed byte: what stands before the cut may be as it was.",
    ),
    "shard.checksum": FaultCode(
        "A shard's bytes have changed",
        "The file is not the one that was written: its checksum or size differs, or it stops making sense.",
        "a fault of the raw data, where Tarmac made the shard: it was sound then, and a disk, a copy or a "
        "program has changed it since.",
    ),
    "shard.count": FaultCode(
        "A shard holds a wrong number of samples",
        "The tar has more or fewer samples than the tables say, so an epoch is longer or shorter.",
        "damage: the tar can be read from its first byte to its last.",
    ),
    "index.mismatch": FaultCode(
        "The index does not fit the shards",
        "The index says where each sample lies. It is missing, torn or points elsewhere, so that a reader by "
        "index stops or gets other bytes.",
        "a fault of the shards: programs that read them from front to back do not notice.",
    ),
    "sample.duplicate_key": FaultCode(
        "A key occurs twice",
        "Two samples, or two members of one, have the same name. Readers merge them or drop one; in two "
        "splits, what is held out may have been trained on.",
        "about pictures that look alike: only names are compared.",
    ),
    "sample.split_members": FaultCode(
        "A sample lies in two places",
        "Readers take neighbouring members of one key for a sample. Here others lie between them, so that "
        "two half samples come out.",
        "a loss: all of its members are there.",
    ),
    "sample.missing_member": FaultCode(
        "A sample lacks a member",
        "A part that every sample needs, such as the image or the caption, is not in the shard. Many loaders "
        "drop such a sample without a word.",
        "an empty member, nor one that cannot be read: there is none.",
    ),
    "member.empty": FaultCode(
        "A member holds nothing",
        "A file of no bytes, or a text of nothing but white space: there is nothing to train on.",
        "a missing member: its name is there.",
    ),
    "member.undecodable": FaultCode(
        "A member cannot be decoded",
        "It is torn, or it is not what its name says, such as a web page saved as a picture.",
        "damage on the disk, unless a changed checksum stands beside it: the source was so already.",
    ),
    "member.checksum": FaultCode(
        "A sample's bytes have changed",
        "The checksum (CRC32C) that was taken at the build differs from that of the bytes in the shard.",
        "a fault of the raw data. A changed picture often still decodes: that it shows proves nothing.",
    ),
    "member.unsafe": FaultCode(
        "A member could do harm",
        "A link, a device, a path that leads out of the folder, or a pickle, which runs code when loaded.",
        "harm done: Tarmac neither unpacked nor loaded it. Another program might.",
    ),
}
"""In the order of a page: what explains others stands before them."""
