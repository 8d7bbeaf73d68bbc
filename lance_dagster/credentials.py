"""What messages show of URIs and endpoints: no user, password, signature or other credential that stands in them.

A credential belongs into the storage options, and a URI or endpoint with one is refused. The refusal is shown, logged
and stored too, and so is any other error that quotes what a caller gave in the place of a name or path.
"""

import re

# Azure's own spelling has the container before '@', which is no credential and cannot hold a password.
CONTAINER = r"abfss://[a-z0-9$-]{1,63}@[a-z0-9]{3,24}\.(dfs|blob)\.[a-z0-9.-]+(/|$)"
_HIDDEN = "..."
# A user and password before '@', after a scheme or, where that was forgotten, at the beginning.
_USER_OF_URI = re.compile(r"^([^/]*:/+).*@|^[^/@]*:[^@]*@", re.DOTALL)
_AROUND = r"\s'\"`<>"
# In a text, of which the URI is a part: a user, one with a password, which may hold slashes, and a query or fragment.
# A port is no password, and `lance+` begins the URI of a version, whose query is its ref.
_USER = re.compile(rf"\b(?!(?:lance\+)?abfss:)([A-Za-z][A-Za-z0-9+.-]*:/+)[^{_AROUND}@/?#]+@")
_PASSWORD = re.compile(rf"\b([A-Za-z][A-Za-z0-9+.-]*:/+)[^{_AROUND}@/?#:]*:(?!\d+(?:/|$))[^{_AROUND}@]*@")
_QUERY = re.compile(rf"(?<!lance\+)\b((?:https?|s3[an]?|gs|az|abfss)://[^{_AROUND}?#]+[?#])[^{_AROUND}]+")


def shown_uri(uri: str) -> str:
    """Return a URI or path as messages show it, without a user, a query and a fragment, which may be credentials.

    Examples:
        >>> shown_uri("s3://user:secret@bucket/lake?sig=secret")
        's3://...@bucket/lake...'
    """
    place, *cut = re.split(r"[?#]|%3[fF]|%23", uri, maxsplit=1)
    if not re.match(CONTAINER, place):
        place = _USER_OF_URI.sub(lambda user: f"{user[1] or ''}{_HIDDEN}@", place)
    return place + _HIDDEN if cut else place


def without_credentials(text: str) -> str:
    """Return a text without the credentials of the URIs in it.

    Examples:
        >>> without_credentials("no table at s3://user:secret@bucket/lake")
        'no table at s3://...@bucket/lake'
    """
    if "://" not in text and ":/" not in text:
        return text
    text = _USER.sub(rf"\1{_HIDDEN}@", _PASSWORD.sub(rf"\1{_HIDDEN}@", text))
    return _QUERY.sub(rf"\1{_HIDDEN}", text)
