"""The device's facts, its ceiling, and the attention kernels by themselves."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.gpu_check.plan import CheckPlan, say
from worker.engine.device import check_device, device_facts
from worker.engine.executable import reason
from worker.engine.identity import default_device, machine_of
from worker.engine.memory import device_memory
from worker.engine.selection import attention_fault
from worker.nn.attention import attention
from worker.nn.kernels import Kernels

_HEAD = 64
_BATCH = 2
_BACKENDS = ("xla", "cudnn")


def device(plan: CheckPlan) -> None:
    """What the device is, whether it computes rightly, and whether the fused attention passes its self-test."""
    say(what="facts", value=device_facts())
    began = time.perf_counter()
    live = default_device()
    say(what="device", value=f"{live.device_kind} ({live.client.platform_version})", seconds=_since(began))
    began = time.perf_counter()
    say(what="computes rightly", value=check_device(allow_cpu=plan.dry), seconds=_since(began))
    say(what="machine of programs", value=machine_of(live, "").card)
    say(what="memory", value=str(device_memory()))
    began = time.perf_counter()
    say(what="fused attention", value=attention_fault(Kernels(attention="cudnn")) or "agrees", seconds=_since(began))


def ceiling(plan: CheckPlan) -> None:
    """Square products of bfloat16 matrices, many in flight."""
    for side in plan.products:
        a, b = (jnp.ones((side, side), jnp.bfloat16) for _ in range(2))
        seconds = measured(jax.jit(jnp.matmul), a, b, count=20)
        say(side=side, seconds=seconds, tflops=2 * side**3 / seconds / 1e12)


def attention_backends(plan: CheckPlan) -> None:
    """Each attention of the UNet at 1024x1024 with guidance, by backend, and how far they differ."""
    random = np.random.default_rng(0)
    for queries, keys, heads in plan.attention:
        shapes = [(_BATCH, length, heads, _HEAD) for length in (queries, keys, keys)]
        q, k, v = (jnp.asarray(random.standard_normal(shape), jnp.bfloat16) for shape in shapes)
        flops = 4 * _BATCH * heads * queries * keys * _HEAD
        found: dict[str, Any] = {}
        for name in _BACKENDS:
            facts = {"backend": name, "queries": queries, "keys": keys, "heads": heads}
            compute = jax.jit(partial(attention, kernels=Kernels(attention=name)))
            try:
                seconds = measured(compute, q, k, v, count=20)
                found[name] = np.asarray(compute(q, k, v), np.float32)
            except Exception as error:  # whatever the kernel's library raises: the others are measured
                say(**facts, fault=reason(error))
                continue
            difference = float(np.max(np.abs(found[name] - found["xla"]))) if "xla" in found else None
            say(**facts, seconds=seconds, tflops=flops / seconds / 1e12, differs_by=difference)


def measured(compute: Callable[..., Any], *arguments: Any, count: int) -> float:
    """Seconds of one call among `count` that are in flight, after a first one."""
    jax.block_until_ready(compute(*arguments))
    began = time.perf_counter()
    results = [compute(*arguments) for _ in range(count)]
    jax.block_until_ready(results)
    return (time.perf_counter() - began) / count


def _since(began: float) -> float:
    return time.perf_counter() - began
