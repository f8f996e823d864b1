"""A Runpod endpoint through the SDK's client, which is patient with what passes: limits, errors, lost connections."""

import random
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, cast

import requests
import runpod
from requests.adapters import HTTPAdapter

from worker.batch.pictures import status_of
from worker.errors import BatchError

_DELAY_MAX_S = 60.0


class Endpoint:
    """A call is repeated until it gets through: after 429, 408, 5xx and lost connections, later and later.

    `pause(seconds)` waits, and raises what ends the client. Raises BatchError where repeating will not help, and when
    nothing has got through for `outage_s`. The asyncio client of the SDK takes no `policy` and hides the status.
    """

    def __init__(
        self, endpoint_id: str, api_key: str | None, connections: int, pause: Callable[[float], None],
        backoff_s: float, outage_s: float,
    ):  # fmt: skip
        try:
            self._endpoint = runpod.Endpoint(endpoint_id, api_key=api_key)
        except RuntimeError:
            raise BatchError("RUNPOD_API_KEY is not set") from None
        self._id, self._pause, self._backoff_s, self._outage_s = endpoint_id, pause, backoff_s, outage_s
        self._client = self._endpoint.rp_client
        # The SDK repeats on http:// only; here every call is repeated, in one way.
        adapter = HTTPAdapter(pool_maxsize=connections)
        for scheme in ("http://", "https://"):
            self._client.rp_session.mount(scheme, adapter)
        self._heard = self._not_before = time.monotonic()

    def run(self, job: Mapping[str, Any]) -> str | None:
        try:
            return self._call(lambda: self._endpoint.run(dict(job)).job_id)
        except requests.HTTPError as error:
            if status_of(error) in (400, 413, 422):
                return None
            raise self._refusal(error) from None

    def status(self, job_id: str) -> Mapping[str, Any] | None:
        try:
            return self._call(lambda: _object(self._client.get(f"{self._id}/status/{job_id}", timeout=30)))
        except requests.HTTPError as error:
            if status_of(error) == 404:
                return None
            raise self._refusal(error) from None

    def cancel(self, job_id: str) -> None:
        try:
            self._call(lambda: self._client.post(f"{self._id}/cancel/{job_id}", {}))
        except requests.HTTPError:
            return

    def workers(self) -> int | None:
        try:
            found = self._endpoint.health()["workers"]
            return sum(int(found.get(kind, 0)) for kind in ("running", "initializing"))
        except (requests.RequestException, RuntimeError, KeyError, TypeError, ValueError, AttributeError):
            return None

    def close(self) -> None:
        self._client.rp_session.close()

    def _call[T](self, work: Callable[[], T]) -> T:
        began = time.monotonic()
        for attempt in count():
            while (early_s := self._not_before - time.monotonic()) > 0:
                self._pause(early_s)
            try:
                found = work()
            except requests.HTTPError as error:
                status = status_of(error)
                if status not in (408, 429) and status < 500:
                    raise
                said, asked_s = f"status {status}", _retry_after(error)
            except (requests.RequestException, KeyError, TypeError) as error:
                # The last two: JSON of something else than the platform.
                said, asked_s, status = type(error).__name__, 0.0, None
            except RuntimeError:
                raise BatchError("the platform does not accept RUNPOD_API_KEY (401)") from None
            else:
                self._heard = time.monotonic()
                return found
            if (silent_s := time.monotonic() - max(began, self._heard)) > self._outage_s:
                raise BatchError(f"the platform has not answered for {silent_s:.0f} s; the last was {said}")
            delay_s = max(asked_s, random.uniform(0.5, 1) * min(_DELAY_MAX_S, self._backoff_s * 2 ** min(attempt, 10)))
            if status == 429:
                # The limit is the endpoint's: the others had better wait too.
                self._not_before = max(self._not_before, time.monotonic() + delay_s)
            self._pause(delay_s)
        raise AssertionError

    def _refusal(self, error: requests.HTTPError) -> BatchError:
        status = status_of(error)
        known = "" if status != 404 else f": there is no endpoint {self._id}"
        return BatchError(f"the platform refuses jobs with status {status}{known}")


def _object(reply: object) -> Mapping[str, Any]:
    if not isinstance(reply, dict):
        raise TypeError
    return cast(Mapping[str, Any], reply)


def _retry_after(error: requests.HTTPError) -> float:
    """Seconds that the server asks for; a date is not worth the trouble."""
    text = "" if error.response is None else error.response.headers.get("Retry-After", "")
    return min(float(text), _DELAY_MAX_S) if text.isdecimal() else 0.0
