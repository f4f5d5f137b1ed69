"""What goes wrong with a remote store, as the errors that local files have.

The texts are written here: what a server or a client library says may hold an address with its signature, or
a key's id.
"""

from __future__ import annotations

import errno

from tasks.core.addresses import shown
from tasks.core.stores import NotRegular, Unreachable

REFUSED = {
    "ExpiredToken": "the credentials have expired",
    "InvalidAccessKeyId": "the credentials are not known to the store",
    "InvalidToken": "the credentials are not known to the store",
    "SignatureDoesNotMatch": "the secret key does not fit the access key",
    "RequestTimeTooSkewed": "this machine's clock is wrong",
}
ANSWERS_AGAIN = (
    "SlowDown",
    "InternalError",
    "ServiceUnavailable",
    "RequestTimeout",
    "500",
    "502",
    "503",
    "504",
)
CREDENTIALS = (
    "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or FSSPEC_S3_ANON=true for a "
    "public bucket"
)


class WrongAnswer(OSError):
    """A server that answers, but not what it was asked for; asking again would not help."""


def failure(error: BaseException, location: str) -> tuple[OSError, bool]:
    """The error as an OSError about `location`, and whether another try may help."""
    where, code = shown(location), _code(error)
    if isinstance(error, NotRegular | WrongAnswer):
        return error, False
    if isinstance(error, UnicodeError) or type(error).__name__.startswith("InvalidU"):
        return NotRegular("no valid address"), False
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OSError(error.errno, f"{error.strerror}, where temporary files are kept", where), False
    if code in REFUSED:
        return Unreachable(errno.EACCES, REFUSED[code], where), False
    if "Credentials" in type(error).__name__:
        return Unreachable(errno.EACCES, CREDENTIALS, where), False
    if code == "NoSuchBucket":
        return Unreachable(errno.ENOENT, "there is no such bucket", where), False
    if isinstance(error, FileNotFoundError) or code in ("404", "410"):
        return FileNotFoundError(errno.ENOENT, "no such file", where), False
    if isinstance(error, PermissionError) or code in ("401", "403"):
        return PermissionError(errno.EACCES, "access is denied", where), False
    if code and code not in ANSWERS_AGAIN and code != "429":
        return OSError(errno.EIO, f"the store answers {code}", where), False
    reason = f"the store answers {code}" if code else _described(error)
    return Unreachable(errno.EIO, f"{reason}; check the network and run again", where), True


def _described(error: BaseException) -> str:
    if _is_broken(error):
        return "the connection broke"
    if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        return "the store does not answer in time"
    return f"the store cannot be reached, or the connection broke ({type(error).__name__})"


def _is_broken(error: BaseException | None) -> bool:
    """Whether an answer did not come whole. aiohttp then has a status of its own making in its exceptions,
    whatever the server's was."""
    while error is not None:
        if any(kind.__name__ == "HttpProcessingError" for kind in type(error).__mro__):
            return True
        error = error.__cause__
    return False


def _code(error: BaseException | None) -> str:
    """The store's own code of the error, such as `NoSuchBucket` or `503`; "" when it gave none."""
    while error is not None and not _is_broken(error):
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        status = getattr(error, "status", None) or getattr(error, "code", None)
        if isinstance(status, int):
            return str(status)
        error = error.__cause__
    return ""
