"""The errors a user may see. Each carries the exit code of the command that it ends.

Anything else that escapes is a defect of Tarmac and keeps its traceback.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

MOST_NAMED = 30


class TarmacError(Exception):
    """Something failed for a reason that the message explains; exit code 1.

    `field` is what mends it in the form of a run on Prefect's page, where the message names an option of the
    command line; None where nothing in the form does.
    """

    exit_code = 1
    field: str | None = None

    def __init__(self, *message: Any, field: str | None = None) -> None:
        super().__init__(*message)
        if field is not None:
            self.field = field

    @property
    def reason(self) -> str:
        """The message without an option of the command line, for a form, whose `field` takes its place."""
        return super().__str__()


class UsageError(TarmacError):
    """A wrong command or config: one line that names the key and the fix; exit code 2."""

    exit_code = 2
    field = "overrides.set"


class DataError(TarmacError):
    """Wrong data: the message names file, sample and fix; exit code 1."""


class NeedsApproval(DataError):
    """Data that a person may take as it is: by `command` in a terminal, by `field` on a page. The first line
    is the question; `samples` are rows of a table that shows what it is about."""

    field = "accept_loss"
    command = "tarmac build CONFIG --accept-loss"

    def __init__(
        self, *message: Any, field: str | None = None, samples: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        super().__init__(*message, field=field)
        self.samples = samples

    def __str__(self) -> str:
        question, *lines = self.reason.splitlines()
        return "\n".join([f"{question}: {self.command}", *lines])


class Withdrawn(TarmacError):
    """Somebody called the work off, which is no failure: it was cancelled or suspended, or another process
    has taken it over. `state` is Prefect's state that said so, where one did."""

    def __init__(
        self, kind: Literal["cancelled", "suspended", "superseded"], reason: str, state: Any = None
    ) -> None:
        self.kind = kind
        self.state = state
        super().__init__(reason)


class OtherRankError(TarmacError):
    """A rank of a training ends because another one has failed, is gone, or does not answer."""


KINDS = {kind.__name__: kind for kind in (TarmacError, UsageError, DataError, NeedsApproval)}
"""The errors that pass from one process to another, by name."""


def kind_of(error: TarmacError) -> str:
    """The name of the nearest of KINDS."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in KINDS)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none, as torch's `EOFError`."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def instead(word: str, known: Sequence[str]) -> str:
    """The rest of a message about a name that nobody knows: the one that was meant, or those there are."""
    near = difflib.get_close_matches(word, known, n=1) or [name for name in known if word and word in name]
    if near:
        return f"did you mean {near[0]}?"
    return f"there are: {', '.join(known[:MOST_NAMED]) or 'none'}{', …' if len(known) > MOST_NAMED else ''}"


def list_mistakes(mistakes: Sequence[str]) -> str:
    """Several mistakes in the one line that a usage error is."""
    more = len(mistakes) - MOST_NAMED
    return " | ".join([*mistakes[:MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])
