"""Checks what reaches the model: pictures that differ, texts that differ and fit, samples in another order.

Pictures are examined as the image tower gets them, so a mistake of the data, of the transform and of the
normalisation shows alike. Texts and keys are examined as they come from the loader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tasks.core.findings import Finding

MOST_PICTURES = 32
VALUES = 4096
"""Values of each picture that are examined, evenly spread."""
LEAST_SAMPLES = 4
CONSTANT = 0.995
"""The share of a picture's values that are its least, or its greatest, in one that counts as empty."""
FLAT = 0.02
"""The range of values, as the model gets them, of a picture that counts as empty."""
FARTHEST = 4.5
"""The largest value of a normalised picture. The usual means and deviations map pictures to -2.2 to 2.7; a
second normalisation reaches -8, and none at all 255."""
LEAST_KEYS = 16
PLACEHOLDER = 1 / 3
"""The share of one and the same text that makes it a placeholder and no caption."""
REPEATED = 0.1
CUT, OFTEN_CUT = 0.05, 0.25
"""The share of texts that fill the context length which is reported, and the share that is a warning."""
JUDGED_TEXTS = 128
COMPARED_KEYS = 64
KEPT_KEYS = 512
KEPT_VIEWS = 32
LEAST_VIEWS = 8


class Pictures:
    """Examines the input of the model's image tower while `seeing`."""

    def __init__(self, towers: Sequence[nn.Module]) -> None:
        self._towers = towers
        self._suspicion: str | None = None

    @contextmanager
    def seeing(self) -> Iterator[list[Tensor]]:
        """Yield a list that the first batch of pictures enters, [samples, ...], if a forward pass has one."""
        seen: list[Tensor] = []

        def keep(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            given = inputs[0] if inputs else None
            if not seen and isinstance(given, Tensor) and given.ndim >= 4:
                seen.append(given.detach()[:MOST_PICTURES])

        handles = [tower.register_forward_pre_hook(keep) for tower in self._towers]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()

    def judge(self, pictures: Tensor) -> Finding | None:
        """Return what is wrong with all pictures, once two examinations in a row have shown it."""
        problem, remedy = _problem_of(pictures)
        is_confirmed = problem is not None and self._suspicion == remedy
        self._suspicion = remedy if problem is not None else None
        if not is_confirmed:
            return None
        return Finding("images.constant", "error", remedy, evidence={"what": problem})


def _problem_of(pictures: Tensor) -> tuple[str | None, str]:
    if len(pictures) < LEAST_SAMPLES:
        return None, ""
    flat = pictures.flatten(1)
    flat = flat[:, :: max(flat.shape[1] // VALUES, 1) | 1].float()
    low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
    is_flat = (high - low < FLAT).squeeze(1)
    at_ends = torch.maximum((flat == low).float().mean(1), (flat == high).float().mean(1))
    figures = torch.stack(
        [
            ((at_ends >= CONSTANT) | is_flat).float().mean(),
            (flat == flat[:1]).all().float(),
            low.min(),
            high.max(),
        ]
    ).tolist()
    empty, is_same, least, most = figures
    of = f"of {len(pictures)} examined"
    look = "look at what the model gets: tarmac look DATASET, then the recipe's transform"
    if empty >= 0.5:
        value = f"{least:.3g}" if least == most else f"{least:.3g} to {most:.3g}"
        return f"{empty:.0%} of the pictures are empty (values {value}), {of}", look
    if is_same:
        return f"all pictures are equal, {of}", look
    if pictures.ndim == 4 and pictures.shape[1] == 3 and max(-least, most) > FARTHEST:
        return (
            f"the model gets pictures of values {least:.3g} to {most:.3g}, {of}",
            "normalise exactly once: values of 255 were not normalised, values of -8 to 6 were twice",
        )
    return None, ""


class Texts:
    """Examines the texts of batches, as tokens [samples, length]."""

    def __init__(self, empty: Tensor | None) -> None:
        """`empty` are the tokens of an empty text, [context length]; None where texts have no such length."""
        self._context = 0 if empty is None else len(empty)
        self._padding = None if empty is None else int(empty[-1])
        self._seen: list[Tensor] | None = []

    def judge(self, tokens: Tensor) -> Iterator[Finding]:
        """Judge once, when enough texts were seen."""
        if self._seen is None:
            return
        longest = max(tokens.shape[1], self._context)
        self._seen.append(pad(tokens, (0, longest - tokens.shape[1]), value=self._padding or 0))
        if sum(map(len, self._seen)) < JUDGED_TEXTS:
            return
        texts, self._seen = torch.cat(self._seen), None
        batch = len(tokens)
        _, counts = torch.unique(texts, dim=0, return_counts=True)
        yield from _repeated(counts, batch)
        cut = float((texts[:, -1] != self._padding).float().mean()) if self._padding is not None else 0.0
        if cut >= CUT:
            what = f"{cut:.0%} of {len(texts)} texts fill all {self._context} tokens of the context"
            yield Finding(
                "text.truncated",
                "warning" if cut >= OFTEN_CUT else "info",
                "shorten the texts, or take a model with a longer context: what is cut is not learned",
                evidence={"what": f"{what}: they are cut there"},
            )


def _repeated(counts: Tensor, batch: int) -> Iterator[Finding]:
    """Judge how often each text occurs, for batches of so many samples.

    Where a text is a share p of all, a batch holds about 1 + (batch - 1) p of it. A model cannot tell these
    apart, so the mean of the logarithm of that number is the least loss of a contrast.
    """
    shares = counts / counts.sum()
    alike = 1 + (batch - 1) * (counts - 1) / (counts.sum() - 1)
    least, commonest = float((shares * alike.log()).sum()), float(shares.max())
    repeated = float(shares[counts > 1].sum())
    if repeated < REPEATED:
        return
    what = (
        f"{repeated:.0%} of {int(counts.sum())} texts occur several times, the commonest in {commonest:.0%}: "
        f"what a sample is contrasted with is its own text too, and the loss cannot fall below {least:.2f}"
    )
    if commonest < PLACEHOLDER:
        remedy = "write captions that differ, or judge the loss by that bound"
        yield Finding("captions.repeated", "info", remedy, evidence={"what": what})
    else:
        remedy = "leave out the samples with this text, which reads like a placeholder (dataset.filter)"
        yield Finding("captions.repeated", "warning", remedy, evidence={"what": what})


class SampleOrder:
    """Compares the order of an epoch, and the views of its first samples, with those of the epoch before."""

    def __init__(self, is_augmented: Callable[[], bool]) -> None:
        """`is_augmented` finds out whether the transform draws at random; it is called on suspicion only."""
        self._is_augmented = is_augmented
        self._first: list[str] = []
        self._known: dict[str, int] = {}
        """The digest of the view of some samples in the first epoch."""
        self._views = {"same": 0, "other": 0}
        self._is_whole = False
        """Whether the first epoch, or as much of it as is kept, is over."""
        self._matched = 0

    def judge(self, batch: Mapping[str, Any]) -> Finding | None:
        keys: Sequence[str] = batch["key"]
        self._compare_views(keys, batch)
        for key in keys:
            if not self._is_whole:
                self._is_whole = len(self._first) == KEPT_KEYS or (
                    bool(self._first) and key == self._first[0]
                )
                if not self._is_whole:
                    self._first.append(key)
                    continue
            is_next = self._matched < len(self._first) and key == self._first[self._matched]
            self._matched = self._matched + 1 if is_next else int(key == self._first[0])
            if self._matched >= max(min(len(self._first), COMPARED_KEYS), LEAST_KEYS):
                return _order_repeated(
                    f"two epochs began with the same {self._matched} samples in the same order",
                    "take loader.shuffle: windows",
                )
        if self._views["same"] >= LEAST_VIEWS and not self._views["other"] and self._is_augmented():
            return _order_repeated(
                f"{self._views['same']} samples looked the same in two epochs, although the transform draws "
                "at random",
                "draw the augmentation from the seed that the transform is given",
            )
        return None

    def _compare_views(self, keys: Sequence[str], batch: Mapping[str, Any]) -> None:
        if sum(self._views.values()) >= KEPT_VIEWS:
            return
        tensors = [value for value in batch.values() if isinstance(value, Tensor) and len(value) == len(keys)]
        for number, key in enumerate(keys):
            if key not in self._known and len(self._known) >= KEPT_VIEWS:
                continue
            digest = 0
            for values in tensors:
                digest = crc32(values[number].contiguous().numpy().tobytes(), digest)
            if key in self._known:
                self._views["same" if self._known[key] == digest else "other"] += 1
            self._known[key] = digest


def same_on_several_ranks(digests: Sequence[int]) -> Finding | None:
    """Judge digests of the keys that each rank read for the same step."""
    if len(set(digests)) == len(digests):
        return None
    return _order_repeated(
        f"of {len(digests)} ranks only {len(set(digests))} read samples of their own in a step",
        "give each rank its own part of the data: RANK and WORLD_SIZE tell which",
    )


def digest_of(keys: Sequence[str]) -> int:
    return crc32("\n".join(keys).encode())


def _order_repeated(what: str, remedy: str) -> Finding:
    return Finding("order.repeated", "warning", remedy, evidence={"what": what})
