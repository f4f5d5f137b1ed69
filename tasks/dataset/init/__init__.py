"""Examine raw data and write a commented config for it."""

from __future__ import annotations

from tasks.dataset.init.config_text import config_text
from tasks.dataset.init.survey import PlaceSurvey, survey

__all__ = ["PlaceSurvey", "config_text", "survey"]
