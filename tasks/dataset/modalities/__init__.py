"""Modalities. A new one is a file in this package and a line in MODALITIES."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.core.schema import Dataset
from tasks.dataset.modalities.base import AcceptedSample, MemberFault, Modality, missing
from tasks.dataset.modalities.chat import CHAT
from tasks.dataset.modalities.image_text import IMAGE_TEXT
from tasks.dataset.modalities.reinforced import REINFORCED
from tasks.dataset.modalities.volume_report import VOLUME_REPORT

__all__ = ["MODALITIES", "AcceptedSample", "MemberFault", "Modality", "missing", "rules_on_fields"]

MODALITIES: Mapping[str, Modality] = {
    "chat": CHAT,
    "image_text": IMAGE_TEXT,
    "reinforced": REINFORCED,
    "volume_report": VOLUME_REPORT,
}


def rules_on_fields(dataset: Dataset) -> dict[str, Any]:
    """Return the rules of `filter` that only a source's fields can meet, because neither a statistic nor a
    score of the modality has their name."""
    modality = MODALITIES[dataset.modality]
    measured = {*modality.statistics, *modality.scores}
    return {name: rule for name, rule in dataset.filter.items() if name not in measured}
