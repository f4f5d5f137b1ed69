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
