"""What keeps other sites' pages, open in a browser on this machine, from using an API that asks nobody for a key."""

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

LOOPBACK_NAMES = ["localhost", "127.0.0.1", "[::1]", "::1"]
"""Hosts in the address of an API on the loopback."""


def is_loopback(host: str) -> bool:
    """Whether an API that listens on `host`, a name or an address, is reached from this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refusal(method: str, headers: Mapping[str, str]) -> str | None:
    """Why a request is not answered; None for programs, and for pages of this API's own origin.

    Browsers say where a request comes from: in Fetch Metadata (W3C) where the address is trustworthy, as the loopback
    is, else in Origin (RFC 6454). Programs say nothing. A link from elsewhere may be followed.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None:
        foreign = origin is not None and urlsplit(origin).netloc != headers.get("host")
    elif method == "GET" and headers.get("sec-fetch-mode") == "navigate":
        foreign = False
    else:
        foreign = site not in ("same-origin", "none")
    return "pages of other sites may not use this API" if foreign else None
