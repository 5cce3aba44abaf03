import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from regard.system.interrupt import Interrupted, handle_signals, interrupted_by_signals
from regard.training.tensors import load_weights
from tests.training.toy import ToyBatches, ToyModel, settings, train, validate


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_requests_a_stop(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with handle_signals() as interruption:
        assert not interruption.is_requested
        send(number)
        assert interruption.is_requested
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_interrupts_a_command(number: signal.Signals) -> None:
    with interrupted_by_signals(), pytest.raises(KeyboardInterrupt):
        send(number)


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupted_by_signals(), handle_signals() as interruption:
            send(signal.SIGHUP)
            assert not interruption.is_requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_second_ctrl_c_stops_at_once_but_a_termination_after_it_does_not() -> None:
    with handle_signals() as interruption:
        send(signal.SIGINT)
        send(signal.SIGTERM)
        assert interruption.is_requested
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_signal_interrupts_code_that_is_interruptible() -> None:
    with handle_signals() as interruption:
        with pytest.raises(Interrupted), interruption.interruptible():
            send(signal.SIGTERM)
        with pytest.raises(Interrupted), interruption.interruptible():
            pytest.fail("started after a signal")


def test_signals_are_not_handled_outside_the_main_thread() -> None:
    requests: list[bool] = []

    def enter() -> None:
        with handle_signals() as interruption:
            requests.append(interruption.is_requested)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert requests == [False]


def test_signal_interrupts_a_validation_and_the_resumed_run_repeats_it(tmp_path: Path) -> None:
    config = settings(steps=8, validate_every=4, ema=0.5)
    calls: list[int] = []

    def validate_and_interrupt(model: nn.Module) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 2:
            send(signal.SIGINT)
            raise AssertionError("not interrupted")
        return validate(model)

    result = train(tmp_path / "interrupted", config, validate=validate_and_interrupt)
    assert result.is_interrupted
    assert (result.stop_reason, result.selected, result.progress.last_validation) == (
        "interrupted",
        "ema",
        4,
    )
    assert result.metrics == validate_weights(tmp_path / "interrupted")
    resumed = train(tmp_path / "interrupted", config)
    uninterrupted = train(tmp_path / "whole", config)
    assert resumed.metrics == uninterrupted.metrics
    runs = (tmp_path / "interrupted", tmp_path / "whole")
    first, second = (load_file(run / "model.safetensors") for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)


def validate_weights(folder: Path) -> dict[str, float]:
    """Return the metrics of the weights in a run folder."""
    model = ToyModel().eval()
    load_weights(folder / "model.safetensors", model)
    with torch.no_grad():
        return validate(model)


def test_signal_before_the_first_step_saves_that_step(tmp_path: Path) -> None:
    batches = ToyBatches(before_batch=lambda number: send(signal.SIGINT) if number == 1 else None)
    result = train(tmp_path, settings(), batches=batches)
    assert (result.stop_reason, result.selected, result.metrics, result.progress.step) == (
        "interrupted",
        "none",
        {},
        1,
    )
    assert (tmp_path / "checkpoints" / "step-00000001" / "state.json").is_file()
