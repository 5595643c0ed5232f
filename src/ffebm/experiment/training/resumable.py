"""Whether a run can go on from what a checkpoint holds: it must look like what this very run would write."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from ffebm.calibration import Tuning
from ffebm.experiment.run import COLUMNS, RunError
from ffebm.experiment.training.calm import calm
from ffebm.experiment.training.learner import Learner


def check_resumable(content: dict[str, Any], learner: Learner) -> None:
    """Raise a `RunError` that names the first thing which is missing, of another kind, or impossible."""
    weights = {f"model.{name}": tensor for name, tensor in learner.model.state_dict().items()}
    kept = content["state_dict"]
    if {name: tuple(t.shape) for name, t in kept.items()} != {name: tuple(t.shape) for name, t in weights.items()}:
        raise RunError("it is of another model than the settings describe")
    _compare(content, _expected(learner) | {"state_dict": weights}, "")
    if not re.fullmatch(r"\d+(\.\w+)+", content["pytorch-lightning_version"]):
        raise RunError("pytorch-lightning_version is none")
    _check_progress(content, learner)
    _check_callbacks(content["callbacks"], learner)
    _check_history(content["ffebm"]["history"], content["epoch"])


def _expected(learner: Learner) -> dict[str, Any]:
    """What a checkpoint of this run looks like, but for its weights; lists of any length hold no more than their first item."""
    trained = deepcopy(learner.model).to("meta")  # which takes no memory
    optimiser, schedule = learner.make_optimiser(trained.parameters())
    for parameter in trained.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()  # the first step makes what it remembers
    with calm():
        loops = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    names = ("fit_loop", "validate_loop", "test_loop", "predict_loop")
    return {
        "epoch": 0,
        "global_step": 0,
        "pytorch-lightning_version": "",
        "loops": {name: getattr(loops, name).state_dict() for name in names},
        "callbacks": {},
        "optimizer_states": [optimiser.state_dict()],
        "lr_schedulers": [schedule.state_dict()],
        "ffebm": {"history": [], "training_sums": [0.0] * 4, "seconds": 0.0},
    }


ANYTHING = ("callbacks", "loops.fit_loop.state_dict", "ffebm.history")  # looked at on their own


def _compare(found: Any, expected: Any, where: str) -> None:
    """The same keys, lengths, kinds and shapes, all the way down; numbers are finite."""
    if where in ANYTHING:
        return
    if isinstance(expected, Tensor):
        if not isinstance(found, Tensor) or found.shape != expected.shape or found.dtype != expected.dtype:
            raise RunError(f"{where} is not a tensor of {expected.dtype} and shape {tuple(expected.shape)}")
        if found.is_floating_point() and not bool(found.isfinite().all()):
            raise RunError(f"{where} holds numbers that are not finite")
    elif isinstance(expected, dict):
        if not isinstance(found, dict) or found.keys() != expected.keys():
            raise RunError(f"{where or 'the whole'} does not hold what it should")
        for key, item in expected.items():
            _compare(found[key], item, f"{where}.{key}".lstrip("."))
    elif isinstance(expected, list | tuple):
        if type(found) is not type(expected) or len(found) != len(expected):
            raise RunError(f"{where} is not a {type(expected).__name__} of {len(expected)}")
        for number, item in enumerate(expected):
            _compare(found[number], item, f"{where}.{number}")
    elif type(found) is not type(expected) and not ({type(found), type(expected)} <= {int, float}):
        raise RunError(f"{where} is {type(found).__name__}, not {type(expected).__name__}")
    elif isinstance(found, int | float) and not abs(found) < 1e18:
        raise RunError(f"{where} is no number that a run comes to")


def _check_progress(content: dict[str, Any], learner: Learner) -> None:
    """Counters of batches and steps, which decide where a run goes on, agree with each other."""
    step, epoch, trainer = content["global_step"], content["epoch"], learner.settings.trainer
    fit = content["loops"]["fit_loop"]
    steps = fit["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["total"]
    batches = fit["epoch_loop.batch_progress"]["total"]
    taken = fit["state_dict"].get("combined_loader") if isinstance(fit["state_dict"], dict) else None
    parts = step * trainer.accumulate
    agree = (
        0 < step <= learner.steps
        and epoch == (step - 1) // (learner.steps // trainer.epochs)
        and steps == {"ready": step, "completed": step}
        and batches["ready"] == parts
        and batches["completed"] in (parts - 1, parts)  # in the middle of an epoch the last one is not yet done with
        and (fit["epoch_progress"]["current"]["ready"], fit["epoch_progress"]["current"]["completed"]) == (epoch + 1, epoch)
        and taken == [{"taken": parts}]
    )
    if not agree or any(not 0 <= counter <= learner.steps * trainer.accumulate for counter in _counters(content["loops"])):
        raise RunError("its counters of steps and epochs contradict each other")


def _counters(loops: Any) -> list[int]:
    if isinstance(loops, dict):
        return [counter for item in loops.values() for counter in _counters(item)]
    return [loops] if type(loops) is int else []


def _check_callbacks(callbacks: Any, learner: Learner) -> None:
    """What calibration chose: sweeps of every block."""
    calibrated = learner.settings.sweeps == "calibrated"
    if not isinstance(callbacks, dict) or callbacks.keys() != ({"Calibrating"} if calibrated else set()):
        raise RunError("what its callbacks remember is not what this run's would")
    if not calibrated:
        return
    match callbacks["Calibrating"]:
        case {"due": int(due), "tunings": list(tunings)} if due >= 0 and len(tunings) == len(learner.model.chain):
            for tuning in tunings:
                _check_tuning(tuning)
        case _:
            raise RunError("its calibration is incomplete")


def _check_tuning(tuning: Any) -> None:
    match tuning:
        case {"free": int(free), "nudged": int(nudged), "omega": float(omega)} if len(tuning) == len(Tuning.__annotations__):
            if free > 0 and nudged > 0 and 0 < omega < 2:
                return
    raise RunError("its calibration is none that blocks can relax by")


def _check_history(history: Any, epoch: int) -> None:
    """A row for every epoch that is done; at the end of one, that one is."""
    rows: list[Any] = history if isinstance(history, list) else [None]
    numbers = all(
        isinstance(row, dict) and row.keys() >= set(COLUMNS) and all(type(value) in (int, float) for value in row.values())
        for row in rows
    )
    if not numbers or len(rows) not in (epoch, epoch + 1) or [row["epoch"] for row in rows] != list(range(1, len(rows) + 1)):
        raise RunError("its history of epochs is not whole")
