"""Kernels are chosen by platform, and a fused attention that does not work is replaced."""

import logging

from worker.engine import selection
from worker.engine.selection import attention_fault, select_kernels, sound_kernels
from worker.nn.kernels import Kernels
from worker.settings import Settings


def test_each_platform_has_its_own():
    assert select_kernels(Settings(), "cpu") == Kernels(attention="xla", convolution="shifted", loop="host")


def test_a_fused_attention_that_fails_is_replaced_and_said(caplog):
    # There is no cuDNN here, which is the failure.
    with caplog.at_level(logging.WARNING):
        kernels = sound_kernels(select_kernels(Settings(), "gpu"))
    assert kernels == Kernels(attention="xla", convolution="xla", loop="device")
    assert "cudnn failed its self-test" in caplog.text


def test_a_fused_attention_that_works_is_kept(monkeypatch):
    monkeypatch.setattr(selection, "attention_fault", lambda _: None)
    assert sound_kernels(select_kernels(Settings(), "gpu")).attention == "cudnn"


def test_a_wrong_result_is_a_fault(monkeypatch):
    right = selection.attention
    monkeypatch.setattr(
        selection,
        "attention",
        lambda q, k, v, kernels: right(q, k, v, Kernels()) * (1.1 if kernels.loop == "host" else 1),
    )
    assert attention_fault(Kernels()) is None
    assert "differs" in (attention_fault(Kernels(loop="host")) or "")
