"""The user's own rules on the fields of a sample: a number is a minimum, `{min, max}` are limits, a text must
be equal, and of a list one value must be equal.

A table's cell may be a text that holds a number; it is compared as the type of the rule. A field that is
missing or cannot be compared does not meet the rule. A number that the build could not measure does: like a
score that nobody has computed, it says nothing against the sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tasks.core.schema.dataset import Limits


def passes(rules: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Whether the fields meet every rule."""
    return not rules or all(meets(rule, fields.get(name)) for name, rule in rules.items())


def passes_measured(rules: Mapping[str, Any], statistics: Mapping[str, Any]) -> bool:
    """Whether no statistic fails its rule: one that is None or NaN was not measured, and fails only a rule on
    words, such as the label, which a sample has or has not."""
    return not rules or all(
        meets(rule, statistics.get(name)) or (_is_about_numbers(rule) and _is_unknown(statistics.get(name)))
        for name, rule in rules.items()
    )


def _is_about_numbers(rule: Any) -> bool:
    return isinstance(rule, Limits | int | float) and not isinstance(rule, bool)


def _is_unknown(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def meets(rule: Any, value: Any) -> bool:
    """Whether one value meets one rule."""
    if isinstance(rule, Limits):
        number = _number(value)
        return number is not None and rule.min <= number <= rule.max
    if isinstance(rule, list):
        return any(_equals(allowed, value) for allowed in rule)
    if _is_about_numbers(rule):
        number = _number(value)
        return number is not None and number >= rule
    return _equals(rule, value)


def _equals(rule: Any, value: Any) -> bool:
    if isinstance(rule, bool):
        return value is rule or (isinstance(value, str) and value.lower() == str(rule).lower())
    if isinstance(rule, int | float):
        return _number(value) == rule
    return value is not None and str(value) == str(rule)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
