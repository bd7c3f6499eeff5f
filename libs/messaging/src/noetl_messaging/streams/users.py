"""The user of the broker that an address names."""

import re
from urllib.parse import unquote, urlsplit

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")


def find_user(url: str) -> str | None:
    """Return the user of an address; None without one, and for one that no subject can name."""
    user = unquote(urlsplit(url).username or "")
    return user if _TOKEN.fullmatch(user) else None
