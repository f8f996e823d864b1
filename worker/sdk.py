"""The Runpod SDK, with what it leaves open closed."""

import sys
from functools import partial
from types import ModuleType

import cpuinfo

# While it is imported, the SDK asks for the processor's name, which takes a second, and loads its command line's SSH;
# no job needs either.
cpuinfo.get_cpu_info = dict
sys.modules.setdefault("paramiko", ModuleType("paramiko"))

import runpod  # noqa: E402
from aiohttp import ClientConnectionError, ClientSession  # noqa: E402
from runpod.serverless.modules import rp_http, rp_scale  # noqa: E402

serverless = runpod.serverless


def mend() -> None:
    """Make the SDK answer every job that it was given; to be called before it starts.

    It posts an answer again after a server's error, but not when the connection is lost: its retries name no
    exceptions. And a job that is handed out after SIGTERM, to the poll that was under way, would never run.
    """
    rp_http.FibonacciRetry = partial(rp_http.FibonacciRetry, exceptions={ClientConnectionError, TimeoutError})
    rp_scale.JobScaler = _Scaler


class _Scaler(rp_scale.JobScaler):
    async def get_jobs(self, session: ClientSession) -> None:
        await super().get_jobs(session)
        await self.run_jobs(session)
