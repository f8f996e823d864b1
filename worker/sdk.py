"""The Runpod SDK, with what it leaves open closed."""

from functools import partial

import runpod
from aiohttp import ClientConnectionError
from runpod.serverless.modules import rp_http

serverless = runpod.serverless


def keep_answers() -> None:
    """Post an answer again when its connection is lost, as the SDK does after a server's error.

    The SDK's retries name no exceptions: one kept-alive connection that the other side has closed, and a finished
    job would hang until the platform's time-out.
    """
    rp_http.FibonacciRetry = partial(rp_http.FibonacciRetry, exceptions={ClientConnectionError, TimeoutError})
