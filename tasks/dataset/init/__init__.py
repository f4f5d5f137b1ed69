"""What raw data is, told from a look at it, and a commented config for it; `survey` is the one way in."""

from __future__ import annotations

from tasks.dataset.init.run import Survey, survey
from tasks.dataset.init.text import config_text

__all__ = ["Survey", "config_text", "survey"]
