"""The errors a user may see. Each carries the exit code of the command that it ends.

Anything else that escapes is a defect of Tarmac and keeps its traceback.
"""


class TarmacError(Exception):
    """Something failed for a reason that the message explains; exit code 1."""

    exit_code = 1


class UsageError(TarmacError):
    """A wrong command or config: one line that names the key and the fix; exit code 2."""

    exit_code = 2


class DataError(TarmacError):
    """Wrong data: the message names file, sample and fix; exit code 1."""


KINDS = {kind.__name__: kind for kind in (TarmacError, UsageError, DataError)}
"""The errors that pass from one process to another, by name."""


def kind_of(error: TarmacError) -> str:
    """The name of the nearest of KINDS."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in KINDS)
