"""Which requests of a browser the local API answers."""

import pytest

from worker.guard import is_loopback, refusal

HOST = {"host": "localhost:8000"}


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.2", False),
        ("my-machine", False),
    ],
)
def test_what_listens_on_the_loopback(host, expected):
    assert is_loopback(host) == expected


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("POST", {}),
        ("POST", {"origin": "http://localhost:8000"}),
        ("POST", {"origin": "http://localhost:8000", "sec-fetch-site": "same-origin"}),
        ("GET", {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}),
    ],
)
def test_programs_and_its_own_pages_are_answered(method, headers):
    assert refusal(method, HOST | headers) is None


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("POST", {"origin": "https://example.com"}),
        ("POST", {"origin": "http://localhost:3000"}),
        ("POST", {"origin": "null"}),
        ("POST", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}),
        ("POST", {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}),
    ],
)
def test_other_pages_are_not(method, headers):
    assert refusal(method, HOST | headers)
