"""What a pipeline says of evaluations that have no result."""

from __future__ import annotations

import pytest

from tasks.core.errors import DataError
from tasks.evaluate import require


@pytest.mark.parametrize(("lost", "says"), [(1, "1 evaluation has no result"), (2, "2 evaluations have no")])
def test_what_is_missing_is_counted_and_named(lost: int, says: str) -> None:
    missing = [f"step {step} zero_shot: its job left no trace" for step in range(lost)]
    with pytest.raises(DataError, match=rf"^{says}(.|\n)*step 0 zero_shot: its job left no trace"):
        require({"stage": "evaluate", "summary": "", "seconds": 0.0, "details": {"missing": missing}})
