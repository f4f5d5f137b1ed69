"""Modalities. A new one is a file in this package and a line in MODALITIES."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.dataset.modalities.base import AcceptedSample, MemberFault, Modality, missing
from tasks.dataset.modalities.chat import CHAT
from tasks.dataset.modalities.image_text import IMAGE_TEXT
from tasks.dataset.modalities.reinforced import REINFORCED
from tasks.dataset.modalities.volume_report import VOLUME_REPORT

__all__ = ["MODALITIES", "AcceptedSample", "MemberFault", "Modality", "missing"]

MODALITIES: Mapping[str, Modality] = {
    "chat": CHAT,
    "image_text": IMAGE_TEXT,
    "reinforced": REINFORCED,
    "volume_report": VOLUME_REPORT,
}
