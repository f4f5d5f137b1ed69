"""Runs that these tests start are ended with them, and train nothing."""

from __future__ import annotations

from tests.supervision.conftest import end_what_is_left, use_fakes

__all__ = ["end_what_is_left", "use_fakes"]
