"""Devices in place of blocks: drivers, time-outs, retries, recordings, and processes that die."""

from __future__ import annotations

import copy
import io
import json
import math
import os
import pickle
import signal
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from ffebm import (
    FFEBM,
    Dense,
    DeviceError,
    DeviceTimeoutError,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    Hopfield,
    Phase,
    Stencil,
    SystemBlock,
    clamp,
)
from ffebm.diagnostics import gradients
from ffebm.hardware import Driver, Physical, ProcessDriver, Recorder, Replay, SimulatedDriver
from ffebm.hardware.physical import Currents, ReplayError
from ffebm.hardware.physical.messages import MessageError, receive, send
from ffebm.nudge import Stationary
from ffebm.state import State
from nets import relative, worst

SETTLE = FixedPoint(3000, tolerance=1e-13)
ESTIMATOR = EquilibriumPropagation(SETTLE, beta=1e-3)
PYTHON = sys.executable
DEVICE = """
import torch
from ffebm import Dense, FixedPoint, Hopfield, clamp
from ffebm.hardware import SimulatedDriver, serve
print("a device may talk")
torch.set_num_threads(1)
energy = Hopfield([Dense(4, 3), Dense(3, 2)], clamp(0.5), feedback=0.5)
serve(SimulatedDriver(energy, FixedPoint(3000, tolerance=1e-13)))
"""


def energy_of(seed: int = 0) -> Hopfield:
    torch.manual_seed(seed)
    return Hopfield([Dense(4, 3), Dense(3, 2)], clamp(0.5), feedback=0.5).double()


def model_of(block: EnergyBlock | SystemBlock, nudge: str = "stationary") -> FFEBM:
    torch.manual_seed(1)
    return FFEBM([nn.Linear(5, 4)], [block], nn.Linear(2, 3), nudge=nudge).double()


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)), torch.arange(6) % 3


class Chip(Driver):
    """A device on this computer that counts what it is asked for, takes so many rows, and fails when it is told to."""

    def __init__(self, energy: Hopfield, rows: int | None = 1, failures: int = 0, error: type[Exception] = DeviceError) -> None:
        self.inner = SimulatedDriver(energy, SETTLE)
        self.rows = rows
        self.failures = failures
        self.error = error
        self.asked: list[str] = []

    def program(self, parameters: Mapping[str, Tensor]) -> None:
        self.asked.append("program")
        self.inner.program(parameters)

    def set_input(self, x: Tensor) -> None:
        self.asked.append("set_input")
        assert self.rows is None or len(x) <= self.rows
        self.inner.set_input(x)

    def apply_nudge(self, currents: Currents) -> None:
        self.asked.append("apply_nudge")
        self.inner.apply_nudge(currents)

    def settle(self) -> None:
        self.asked.append("settle")
        if self.failures:
            self.failures -= 1
            raise self.error("the laser went out")
        self.inner.settle()

    def read(self) -> State:
        self.asked.append("read")
        return self.inner.read()

    def reset(self) -> None:
        self.asked.append("reset")


@pytest.mark.parametrize("rows", [1, 4, None])
@pytest.mark.parametrize("nudge", ["stationary", "elastic"])
@pytest.mark.parametrize("stencil", [Stencil.centered(), Stencil.one_sided(), Stencil.random_sign()], ids=lambda s: s.name)
def test_a_device_has_the_gradients_of_the_block_that_it_stands_in_for(rows: int | None, nudge: str, stencil: Stencil) -> None:
    energy, (x, y) = energy_of(), batch()
    estimator = EquilibriumPropagation(SETTLE, beta=1e-3, stencil=stencil)
    torch.manual_seed(3)  # signs are drawn
    expected = gradients(model_of(EnergyBlock(energy, SETTLE, estimator), nudge), x, y)
    torch.manual_seed(3)
    block = SystemBlock(Physical(Chip(energy, rows), energy), estimator)
    found = gradients(model_of(block, nudge), x, y)
    found = {name.replace("system.", ""): gradient for name, gradient in found.items()}
    # A device holds the current of an elastic nudge, which a simulation takes anew at every sweep: as small as β² or, for
    # one nudge, β.
    tolerance = 1e-6 if nudge == "stationary" or stencil.linearised else 1e-3
    assert worst(found, expected) < tolerance


def test_a_device_is_programmed_when_parameters_change_and_asked_for_rows_in_order() -> None:
    energy, (x, y) = energy_of(), batch()
    chip = Chip(energy, 4)
    model = model_of(SystemBlock(Physical(chip, energy), ESTIMATOR))
    model(x, y)
    one = ["set_input", "apply_nudge", "settle", "read"]
    assert chip.asked == ["program", *one, *one]
    model(x, y).losses.mean().backward()
    assert chip.asked == ["program", *one * 7]  # two groups free, two free again, and three with nudges of both signs
    torch.optim.SGD(model.parameters(), 0.1).step()
    model(x, y)
    assert chip.asked[29:] == ["program", *one, *one]


def test_a_nudge_is_a_current_against_the_error_that_the_weight_of_the_layer_divides() -> None:
    energy, x = energy_of(), torch.randn(2, 4, dtype=torch.float64)
    seen: list[list[Tensor | None]] = []

    class Watched(Chip):
        def apply_nudge(self, currents: Currents) -> None:
            seen.append(list(currents))
            super().apply_nudge(currents)

    error = torch.randn(2, 4, dtype=torch.float64)
    nudge = Stationary(1.0, (error, None, None))
    Physical(Watched(energy, None), energy).settle(x, [Phase(), Phase(nudge, 0.1)], start=energy.init_state(x))
    (currents,) = seen
    assert currents[1] is None
    assert currents[2] is None
    weight = energy.layer_weight(0)
    assert weight == 4.0
    torch.testing.assert_close(currents[0], torch.cat([torch.zeros_like(error), -0.1 * error / weight]))


def test_a_device_that_fails_now_and_then_is_reset_and_asked_again() -> None:
    energy, (x, y) = energy_of(), batch()
    chip = Chip(energy, None, failures=2, error=OSError)
    model = model_of(SystemBlock(Physical(chip, energy, retries=2), ESTIMATOR))
    found = model(x, y).losses
    assert chip.asked.count("reset") == 2
    assert chip.asked.count("program") == 3, "nobody knows what it is after a failure"
    torch.testing.assert_close(found, model_of(EnergyBlock(energy, SETTLE, ESTIMATOR))(x, y).losses)


def test_a_device_that_fails_too_often_is_an_error_that_says_what_to_do() -> None:
    energy, (x, y) = energy_of(), batch()
    model = model_of(SystemBlock(Physical(Chip(energy, None, failures=3), energy, retries=2), ESTIMATOR, name="the chip"))
    words = (
        r"The device of the chip, Chip\(\), failed 3 times in a row: the laser went out\. Parameters and the state of the optim"
    )
    with pytest.raises(DeviceError, match=words):
        model(x, y)


def test_a_mistake_of_the_program_is_not_tried_again() -> None:
    energy, (x, y) = energy_of(), batch()
    chip = Chip(energy, None, failures=1, error=ZeroDivisionError)
    with pytest.raises(ZeroDivisionError, match="the laser went out"):
        model_of(SystemBlock(Physical(chip, energy), ESTIMATOR))(x, y)
    assert chip.asked.count("settle") == 1
    assert chip.asked[-1] == "reset"


def test_a_device_that_hangs_is_given_up_in_time() -> None:
    energy, (x, y) = energy_of(), batch()

    class Asleep(Chip):
        def settle(self) -> None:
            time.sleep(20)

    model = model_of(SystemBlock(Physical(Asleep(energy, None), energy, timeout=0.05, retries=1), ESTIMATOR))
    began = time.monotonic()
    with pytest.raises(DeviceTimeoutError, match=r"failed 2 times in a row: it has not answered within 0\.05 s"):
        model(x, y)
    assert time.monotonic() - began < 10


BAD_READINGS = {
    r"layer 2 reads as 3 numbers that are not finite": lambda s: (s[0], s[1] * math.nan, s[2]),
    r"it reads layers of shapes \[\(1, 4\), \(1, 3\)\], and should read \[\(1, 4\), \(1, 3\), \(1, 2\)\]": lambda s: s[:2],
    r"it reads layers of shapes \[\(1, 3\), ": lambda s: (s[0][:, :3], *s[1:]),
}


@pytest.mark.parametrize("words", BAD_READINGS)
def test_readings_that_cannot_be_are_refused(words: str) -> None:
    energy, (x, y) = energy_of(), batch()

    class Broken(Chip):
        def read(self) -> State:
            return BAD_READINGS[words](super().read())

    with pytest.raises(DeviceError, match=words):
        model_of(SystemBlock(Physical(Broken(energy), energy, retries=0), ESTIMATOR))(x, y)


def test_a_device_that_dies_under_way_loses_no_training_state_and_another_one_goes_on() -> None:
    """In the middle of a backward pass."""
    energy, (x, y) = energy_of(), batch()
    model = model_of(SystemBlock(Physical(Chip(energy, None), energy, retries=0), ESTIMATOR))
    twin = copy.deepcopy(model)
    twin.blocks[0].system.driver = Chip(energy, None)  # copies share a device until they are given another

    def train(model: FFEBM, optimiser: torch.optim.Optimizer) -> None:
        optimiser.zero_grad()
        model(x, y).losses.mean().backward()
        optimiser.step()

    optimisers = [torch.optim.Adam(each.parameters(), 0.01) for each in (model, twin)]
    for each, optimiser in zip((model, twin), optimisers, strict=True):
        train(each, optimiser)
    parameters = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(optimisers[0].state_dict()["state"])
    losses = model(x, y).losses
    model.blocks[0].system.driver.failures = 1
    with pytest.raises(DeviceError, match=r"failed once: the laser went out.*`block\.system\.driver = \.\.\.`"):
        losses.mean().backward()
    assert all(torch.equal(p, parameters[name]) for name, p in model.state_dict().items())
    torch.testing.assert_close(optimisers[0].state_dict()["state"], state, rtol=0, atol=0)
    model.blocks[0].system.driver = Chip(energy, None)
    for each, optimiser in zip((model, twin), optimisers, strict=True):
        train(each, optimiser)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("rows", [4, None])
def test_a_recording_replays_bit_for_bit(rows: int | None, tmp_path: Path) -> None:
    energy, (x, y) = energy_of(), batch()

    def trained(driver: Driver) -> list[Tensor]:
        block = SystemBlock(Physical(driver, copy.deepcopy(energy)), ESTIMATOR)
        model = model_of(block)
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimiser.zero_grad()
            model(x, y).losses.mean().backward()
            optimiser.step()
        driver.close()
        return [p.detach() for p in model.parameters()]

    noise = torch.Generator().manual_seed(5)  # goes on: the same question is answered otherwise each time

    class Noisy(Chip):
        def read(self) -> State:
            return tuple(s + 1e-3 * torch.randn(s.shape, generator=noise).to(s) for s in super().read())

    first = trained(Recorder(Noisy(energy, rows), tmp_path / "session"))
    again = trained(Replay(tmp_path / "session"))
    assert all(torch.equal(p, q) for p, q in zip(first, again, strict=True))
    assert not all(torch.equal(p, q) for p, q in zip(first, trained(Noisy(energy, rows)), strict=True))
    assert Replay(tmp_path / "session").length == (6 if rows is None else 3 * (2 + 3))  # 6 samples free, and 12 nudged


def recording(path: Path, x: Tensor) -> Path:
    energy = energy_of()
    with Recorder(SimulatedDriver(energy, SETTLE), path) as driver:
        SystemBlock(Physical(driver, energy), ESTIMATOR)(x)
        SystemBlock(Physical(driver, energy), ESTIMATOR)(2 * x)
    return path


def test_a_replay_refuses_other_questions_and_more_of_them(tmp_path: Path) -> None:
    x = torch.randn(2, 4, dtype=torch.float64)
    path = recording(tmp_path / "session", x)
    block = SystemBlock(Physical(Replay(path), energy_of()), ESTIMATOR)
    block(x)
    with pytest.raises(ReplayError, match=r"Reading 2 of .*session answers another question"):
        block(x)
    with pytest.raises(ReplayError, match=r"Reading 1 of .* answers another question"):
        SystemBlock(Physical(Replay(path), energy_of(1)), ESTIMATOR)(x)
    block = SystemBlock(Physical(Replay(path), energy_of()), ESTIMATOR)
    block(x)
    block(2 * x)
    with pytest.raises(ReplayError, match="ends after 2 readings, and another one is asked for"):
        block(x)


def test_a_recording_never_replaces_one_and_is_whole_up_to_its_last_reading(tmp_path: Path) -> None:
    path = recording(tmp_path / "session", torch.randn(2, 4, dtype=torch.float64))
    with pytest.raises(FileExistsError, match="is there already, and a recording never replaces one"):
        Recorder(SimulatedDriver(energy_of()), path)
    content = path.read_bytes()
    (end,) = [place for place in range(len(content)) if content.startswith(b"ffe1", place)][-1:]
    path.write_bytes(content[:end])  # the process was killed between two readings
    assert Replay(path).length == 1


def hostile(content: bytes) -> dict[str, tuple[bytes, str]]:
    last = content.rindex(b"ffe1")
    huge = struct.pack("<4sIQ", b"ffe1", 100, 1 << 60)
    lying = json.dumps({"words": {}, "tensors": [["0", "float64", [1 << 39, 1 << 39]]]}).encode()
    return {
        "empty": (b"", "it does not begin as readings of a device, version 1 do"),
        "other": (pickle.dumps({"a": 1}) * 9, "this is no message of a device"),
        "cut": (content[:-3], "after 1 readings: it is cut off"),
        "flipped": (content[:-3] + bytes([content[-3] ^ 1]) + content[-2:], "after 2 readings: its checksum is wrong"),
        "swapped": (content[: content.index(b"ffe1", 4)] + content[last:], "after 1 readings: its checksum is wrong"),
        "huge": (content[:last] + huge, "it announces 100 .* bytes"),
        "lying": (
            content[:last] + struct.pack("<4sIQ", b"ffe1", len(lying), 8) + lying + b"\0" * 8,
            "its tensors have .* bytes",
        ),
        "nested": (content[:last] + struct.pack("<4sIQ", b"ffe1", 90_000, 0) + b"[" * 90_000, "its words cannot be read"),
        "rows": (content.replace(b'"rows": null', b'"rows": -999'), "it says nothing of how many samples"),
        "kind": (content.replace(b"float64", b"complex"), "its words cannot be read"),
    }


@pytest.mark.parametrize("kind", hostile(b"ffe1----ffe1----"))
def test_damaged_and_hostile_recordings_are_refused(kind: str, tmp_path: Path) -> None:
    path = recording(tmp_path / "session", torch.randn(2, 4, dtype=torch.float64))
    content, words = hostile(path.read_bytes())[kind]
    path.write_bytes(content)
    with pytest.raises(ReplayError, match=f"session is no sound recording.*{words}"):
        Replay(path)


def test_a_pipe_keeps_no_replay_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ReplayError, match="it is a folder, a pipe or a device"):
        Replay(tmp_path / "pipe")


KINDS = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool])


@given(
    shapes=st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=3), KINDS), max_size=3),
    words=st.text("aé\n\0{", max_size=20),
)
@settings(max_examples=20)
def test_messages_arrive_as_they_were_sent(shapes: list[tuple[list[int], torch.dtype]], words: str) -> None:
    tensors = {str(i): (3 * torch.randn(shape)).to(kind) for i, (shape, kind) in enumerate(shapes)}
    file = io.BytesIO()
    send(file, {"do": words}, tensors)
    file.seek(0)
    message = receive(file)
    assert message is not None
    assert message.words == {"do": words}
    assert message.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert message.tensors[name].dtype == tensor.dtype
        assert torch.equal(message.tensors[name], tensor)
    assert receive(file) is None


@given(st.binary(max_size=200))
@settings(max_examples=50)
def test_what_is_no_message_is_refused(content: bytes) -> None:
    for given_content in (content, b"ffe1" + content):
        try:
            found = receive(io.BytesIO(given_content))
        except MessageError:
            continue
        assert found is None
        assert given_content == b""


def test_a_process_stands_in_for_a_block_dies_and_is_followed_by_another(tmp_path: Path) -> None:
    """Trained by a simulation in another process, killed under way; as good as trained here, to rounding."""
    (tmp_path / "device.py").write_text(DEVICE)
    energy, (x, y) = energy_of(), batch()
    here = model_of(EnergyBlock(copy.deepcopy(energy), SETTLE, ESTIMATOR))
    driver = ProcessDriver([PYTHON, str(tmp_path / "device.py")])
    there = model_of(SystemBlock(Physical(driver, energy, retries=0), ESTIMATOR, name="the other process"))
    with driver:
        expected, found = gradients(here, x, y), gradients(there, x, y)
        assert worst({name.replace("system.", ""): g for name, g in found.items()}, expected) < 1e-6
        before = [p.detach().clone() for p in there.parameters()]
        first = driver.pid
        os.kill(first, signal.SIGKILL)
        there.blocks[0].system.retries = 1
        again = gradients(there, x, y)  # of a process that was started anew
        assert all(torch.equal(again[name], found[name]) for name in found)
        second = driver.pid
        os.kill(second, signal.SIGKILL)
        there.blocks[0].system.retries = 0
        with pytest.raises(DeviceError, match=r"The device of the other process, .*failed once: it is gone, ended by signal 9"):
            gradients(there, x, y)
        assert all(torch.equal(p, q) for p, q in zip(before, there.parameters(), strict=True))
    assert first != second
    assert driver.pid is None
    copied = copy.deepcopy(there)
    assert copied.blocks[0].system.driver is driver
    with pytest.raises(TypeError, match="A ProcessDriver cannot be pickled: it holds on to a device"):
        pickle.dumps(there)


SILENT = {
    "import sys; sys.exit('no chip at /dev/ttyUSB0')": r"never came to `serve`, ended with code 1 and the words 'no chip at",
    "print('ready')": r"never came to `serve`, ended with code 0",
    "import time; time.sleep(30)": r"it has not answered within 0\.5 s",
    "print('ffebm: a device is served from here on', flush=True); print('x' * 100, flush=True); import time; time.sleep(30)": (
        r"it answers by what is no message, this is no message of a device"
    ),
}


@pytest.mark.parametrize("code", SILENT)
def test_a_process_that_is_no_device_says_what_it_said(code: str) -> None:
    energy, (x, y) = energy_of(), batch()
    with ProcessDriver([PYTHON, "-c", code]) as driver:
        timeout = 0.5 if "0\\.5" in SILENT[code] else 30
        block = SystemBlock(Physical(driver, energy, timeout=timeout, retries=0), ESTIMATOR)
        with pytest.raises(DeviceError, match=SILENT[code]):
            model_of(block)(x, y)


def test_a_program_that_is_not_there_is_named() -> None:
    block = SystemBlock(Physical(ProcessDriver(["/no/such/program"]), energy_of(), retries=0), ESTIMATOR)
    with pytest.raises(DeviceError, match="/no/such/program cannot be started: No such file or directory"):
        block(torch.randn(1, 4, dtype=torch.float64))


def test_a_device_of_another_shape_is_named() -> None:
    other = SimulatedDriver(Hopfield([Dense(4, 2)]))
    with pytest.raises(ValueError, match="The device is another one than the block is described by: for 'interactions"):
        SystemBlock(Physical(other, energy_of()), ESTIMATOR)(torch.randn(1, 4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Physical(energy_of(), energy_of()), "`driver` must be a Driver such as NgspiceDriver"),
        (lambda: Physical(Chip(energy_of()), nn.Linear(2, 2)), "`energy` must be a Energy such as"),
        (lambda: Physical(Chip(energy_of()), energy_of(), timeout=0), "`timeout` must be positive and finite, got 0"),
        (lambda: Physical(Chip(energy_of()), energy_of(), retries=-1), "`retries` must be a whole number of at least 0"),
        (lambda: ProcessDriver("device.py"), "`command` must be a list such as"),
        (lambda: ProcessDriver([]), "`command` must be a list"),
    ],
)
def test_what_cannot_be_is_refused_at_construction(make, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        make()


def test_a_device_cannot_be_watched_bent_or_asked_for_complex_nudges() -> None:
    energy, x = energy_of(), torch.randn(1, 4, dtype=torch.float64)
    system = Physical(Chip(energy), energy)
    with pytest.raises(TypeError, match="A device cannot be watched on its way"):
        system.settle(x, [Phase()], observer=lambda *_: None)
    for stencil, words in ((Stencil.small_signal(), "known by its readings alone"), (Stencil.roots(3), "real nudges only")):
        output = SystemBlock(system, EquilibriumPropagation(stencil=stencil))(x)
        with pytest.raises(TypeError, match=words):
            output.sum().backward()


def test_single_precision_models_work_devices_in_double() -> None:
    energy = energy_of().float()
    x = torch.randn(3, 4)
    block = SystemBlock(Physical(Chip(energy), energy), EquilibriumPropagation(SETTLE, beta=0.05))
    output = block(x)
    assert output.dtype == torch.float32
    expected = EnergyBlock(energy, FixedPoint(100))(x)
    assert relative(output, expected) < 1e-6
    output.sum().backward()
