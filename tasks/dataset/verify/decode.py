"""The members of a sample decoded: by the modality's rules where there are any, else by their suffixes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tasks.core.errors import UsageError
from tasks.dataset.formats import Unjudged
from tasks.dataset.formats.checks import LONGEST, is_pickle, problem_of, worded
from tasks.dataset.modalities import MODALITIES, Fault

MOST_UNDECODED = 100
"""Ends of suffixes that are remembered."""
_NUMBERED = re.compile(r"\d{3}(\.\w+)?")
"""Images of a conversation."""


class Decoder:
    """`undecoded` are the ends of suffixes that it has met and cannot judge."""

    def __init__(self, modality: str | None) -> None:
        self._modality = MODALITIES.get(modality or "")
        self._is_numbered = modality == "chat"
        required = self._modality.required if self._modality else ()
        self._of_modality = {"json", *(choice for choices in required for choice in choices)}
        self.undecoded: set[str] = set()

    def judge(self, contents: Mapping[str, bytes]) -> Iterator[Fault]:
        """What is wrong with members that are not empty."""
        if self._modality is not None:
            try:
                yield from self._modality.judge(contents)
            except UsageError:
                raise  # a package is missing, which is no fault of the data
            except Exception as error:  # noqa: BLE001 - hostile content may lead anywhere, but not to a crash
                yield Fault("member.undecodable", " ".join(sorted(contents)), worded(error))
            self.undecoded.update(suffix for suffix in self._modality.unjudged() if suffix in contents)
        for suffix, content in contents.items():
            if not self._is_of_modality(suffix) and not is_pickle(suffix):
                yield from self._judge_one(suffix, content)

    def _is_of_modality(self, suffix: str) -> bool:
        if self._modality is None:
            return False
        return suffix in self._of_modality or (self._is_numbered and bool(_NUMBERED.fullmatch(suffix)))

    def _judge_one(self, suffix: str, content: bytes) -> Iterator[Fault]:
        try:
            problem = problem_of(suffix, content)
        except Unjudged:
            self.leave_out(suffix)
            return
        if problem is not None:
            code, evidence = problem
            yield Fault(code, suffix, evidence)

    def leave_out(self, suffix: str) -> None:
        if len(self.undecoded) < MOST_UNDECODED:
            self.undecoded.add(suffix.rpartition(".")[2][:LONGEST])
