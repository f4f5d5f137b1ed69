"""The errors that are reported to users. Each carries the exit code of the command that it ends.

Any other exception that escapes is a defect of Tarmac and keeps its traceback.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

MOST_NAMED = 30


class TarmacError(Exception):
    """Something failed for a reason that the message explains; exit code 1.

    `field` names the field that fixes the error in the form of a run on Prefect's page, where the message
    names a command-line option; it is None where no field does.
    """

    exit_code = 1
    field: str | None = None

    def __init__(self, *message: Any, field: str | None = None) -> None:
        super().__init__(*message)
        if field is not None:
            self.field = field

    @property
    def reason(self) -> str:
        """The message without a command-line option, for a form, where `field` replaces the option."""
        return super().__str__()


class UsageError(TarmacError):
    """A command or config is wrong. The message names the key and the fix, in one line per mistake; exit
    code 2."""

    exit_code = 2
    field = "overrides.set"


class DataError(TarmacError):
    """The data are wrong. The message names file, sample and fix; exit code 1."""


class NeedsApproval(DataError):
    """A person must approve the data as they are: by `command` in a terminal, by `field` on a page. The first
    line is the question; `samples` are table rows that show the data in question."""

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
    """The work was cancelled or suspended, or another process has taken it over, which is not a failure.
    `state` is the Prefect state that caused it, if any."""

    def __init__(
        self, kind: Literal["cancelled", "suspended", "superseded"], reason: str, state: Any = None
    ) -> None:
        self.kind = kind
        self.state = state
        super().__init__(reason)


class OtherRankError(TarmacError):
    """A rank of a training ends because another rank has failed, is gone, or does not answer."""


KINDS = {kind.__name__: kind for kind in (TarmacError, UsageError, DataError, NeedsApproval)}
"""The errors that are passed from one process to another, by name."""


def kind_of(error: TarmacError) -> str:
    """Return the name of the most specific class in KINDS."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in KINDS)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has no message (torch's `EOFError`)."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def instead(word: str, known: Sequence[str]) -> str:
    """Return the end of a message about an unknown name: the closest known name, or the list of them."""
    import difflib  # here, because nearly all commands know all names

    near = difflib.get_close_matches(word, known, n=1) or [
        name for name in known if len(word) > 2 and word in name
    ]
    if near:
        return f"did you mean {near[0]}?"
    return f"there are: {', '.join(known[:MOST_NAMED]) or 'none'}{', …' if len(known) > MOST_NAMED else ''}"


def list_mistakes(mistakes: Sequence[str], origin: str = "") -> str:
    """Return one mistake as a line that begins with its `origin`, or several as a line that counts them and
    a line for each."""
    start = f"{origin}: " if origin else ""
    if len(mistakes) == 1:
        return start + mistakes[0]
    more = len(mistakes) - MOST_NAMED
    lines = [*mistakes[:MOST_NAMED], *([f"and {more} more"] if more > 0 else [])]
    return "\n  ".join([f"{start}{len(mistakes)} errors", *lines])


def mistakes_of(error: UsageError) -> list[str]:
    """Return the mistakes that `list_mistakes` has joined, each with its origin."""
    first, *lines = str(error).split("\n  ")
    origin = first.rpartition(": ")[0]
    return [f"{origin}: {line}" if origin else line for line in lines] or [first]
