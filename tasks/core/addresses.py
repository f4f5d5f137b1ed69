"""Addresses of files on other machines, and what of them may be told.

Whoever may read a file is often said in its address: a user and password, or a signature in the query. What
people see, and what names samples, are hence addresses without these.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from urllib.parse import parse_qsl, urlsplit

from tasks.core.schema.block import REMOTE_SCHEMES

_PARTS = re.compile(r"([a-z0-9]+)://(?:[^/?#]*@)?([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s\[\]:@]+)(?::\d{0,5})?")
_SIGNS = re.compile(
    r"x-(amz|goog|oss|cos|ms)-.*|(aws|oss)accesskeyid|googleaccessid|key-pair-id|policy|expires?|signature"
    r"|(access_?|auth_?|api_?|security_?)?token|(access|api)_?key|password|secret|hmac|jwt|hdnts|hdnea",
    re.IGNORECASE,
)
"""Parameters by which storage services and content networks know who may read. Of those that are not in it a
change is one of the file, so it holds only what can mean nothing else."""
_SIGNED_BY = {
    "sig": re.compile(r"sig|s[eiprstv]|srt|spr|sip|sdd|sk(oid|tid|[estv])"),
    "hm": re.compile(r"hm|ex|is"),
    "oh": re.compile(r"oh|oe"),
}
"""Of Azure, Discord and Facebook: parameters that belong to a signature where there is this one."""


def is_remote(location: str) -> bool:
    return "://" in location and location.partition("://")[0] in REMOTE_SCHEMES


def is_web(location: str) -> bool:
    """Whether `?` begins a query; in the name of an object it stands for itself."""
    return location.startswith(("https://", "http://"))


def host_of(address: str) -> str:
    """Scheme and host, or bucket: `https://h/x?y` -> `https://h`."""
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{rest.partition('?')[0].partition('/')[0]}"


def is_valid(address: str) -> bool:
    """Whether an address names a host, or a bucket, at all."""
    if not is_web(address):
        return bool(_BUCKET.fullmatch(address.partition("://")[2].partition("/")[0]))
    found = _PARTS.fullmatch(address)
    if found is None or not _HOST.fullmatch(found[2]):
        return False
    try:
        return bool(urlsplit(address).hostname) and (urlsplit(address).port or 0) >= 0
    except ValueError:
        return False


def shown(location: str) -> str:
    """The location for a person: without user, password and query. Never raises."""
    found = _PARTS.fullmatch(location) if is_remote(location) else None
    return location if found is None else f"{found[1]}://{found[2]}{found[3]}"


def named(address: str) -> str:
    """The address as a sample's name: like `shown`, with a digest of what in the query says which file it is.

    So `get?id=1` and `get?id=2` are two files, while an address that was signed anew is still the same.
    """
    found = _PARTS.fullmatch(address)
    if found is None or not is_web(address):
        return address
    said = parse_qsl(found[4] or "", keep_blank_values=True)
    signs = [_SIGNS, *(_SIGNED_BY[name] for name, _ in said if name in _SIGNED_BY)]
    chosen = [pair for pair in said if not any(sign.fullmatch(pair[0]) for sign in signs)]
    if not chosen:
        return shown(address)
    mark = blake2b(repr(chosen).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{shown(address)}?{mark}"
