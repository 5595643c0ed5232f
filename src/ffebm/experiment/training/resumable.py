"""Whether a run can go on from what a checkpoint holds: it must be what this very run would have written at that step."""

from __future__ import annotations

import math
import re
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from lightning import __version__ as lightning_version
from lightning.pytorch import Trainer
from torch import Tensor

from ffebm.experiment.run import RunError, check_row
from ffebm.experiment.training.calibrating import LATEST
from ffebm.experiment.training.calm import calm
from ffebm.experiment.training.fidelity_meter import METERED
from ffebm.experiment.training.learner import Learner

__all__ = ["Pattern", "check_resumable"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Pattern:
    """What a checkpoint of a run looks like after a step."""

    content: dict[str, Any]  # but for what is looked at on its own
    groups: list[dict[str, Any]]  # of the optimiser's parameters
    schedule: dict[str, Any]
    fit_loop: dict[str, Any]  # of this version of Lightning

    @classmethod
    def of(cls, learner: Learner) -> Pattern:
        model = deepcopy(learner.model)
        if learner.has_own_optimiser:  # which may look at numbers, and make what it remembers at any step
            optimiser, schedule = learner.make_optimiser(model.parameters())
        else:
            model.to("meta")  # which takes no memory
            optimiser, schedule = learner.make_optimiser(model.parameters())
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimiser.step()  # the first step makes what it remembers
        state = optimiser.state_dict()
        with calm():
            trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
        content = {
            "epoch": 0,
            "global_step": 0,
            "pytorch-lightning_version": "",
            "state_dict": {f"model.{name}": tensor for name, tensor in model.state_dict().items()},
            "loops": {},
            "callbacks": {},
            "optimizer_states": [state],
            "lr_schedulers": [],
            "ffebm": {"history": [], "training_sums": [0.0] * 4, "seconds": 0.0},
        }
        return cls(content, state["param_groups"], schedule.state_dict(), trainer.fit_loop.state_dict())


def check_resumable(content: dict[str, Any], learner: Learner, pattern: Pattern) -> None:
    """Raise a `RunError` that names the first thing which is missing, of another kind, or impossible."""
    try:
        _check(content, learner, pattern)
    except (RunError, MemoryError):
        raise
    except Exception as error:  # content of a strange kind fails in ways that have no common type
        raise RunError(f"its content is not of the kind that this run writes ({type(error).__name__})") from error


def _check(content: dict[str, Any], learner: Learner, pattern: Pattern) -> None:
    shapes = [{name: tuple(t.shape) for name, t in found["state_dict"].items()} for found in (content, pattern.content)]
    if shapes[0] != shapes[1]:
        raise RunError("it is of another model than the settings describe")
    _compare(content, pattern.content, "")
    for name, tensor in content["state_dict"].items():
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise RunError(f"{name} is a variance, and negative")
    _check_loops(content, learner, pattern)
    if learner.has_own_optimiser:
        _check_own_optimiser(content, pattern)
    else:
        _check_optimiser(content, learner, pattern)
    _check_callbacks(content["callbacks"], learner)
    _check_history(content["ffebm"]["history"], content["epoch"])
    samples, _, right, _ = content["ffebm"]["training_sums"]
    if not 0 <= right <= samples <= len(learner.dataset.train) or content["ffebm"]["seconds"] < 0:
        raise RunError("its sums over an epoch cannot be")


# Looked at on their own: other versions of Lightning and torch may have more, or less, in them.
APART = ("callbacks", "loops", "ffebm.history", "lr_schedulers", "optimizer_states.0.state", "optimizer_states.0.param_groups")


def _compare(found: Any, expected: Any, where: str) -> None:
    """The same keys, lengths, kinds and shapes, all the way down; numbers are finite."""
    if where in APART:
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


def _check_loops(content: dict[str, Any], learner: Learner, pattern: Pattern) -> None:
    """Counters of batches and steps, which decide where a run goes on."""
    version, major = content["pytorch-lightning_version"], lightning_version.partition(".")[0]
    if not re.fullmatch(rf"{major}\.\d{{1,4}}(\.\w{{1,20}})*", version):
        raise RunError(f"its version of Lightning is not one of {major}.x, which this run is trained by")
    fit = content["loops"]["fit_loop"]
    if version == lightning_version:
        _compare(fit, {**pattern.fit_loop, "state_dict": fit["state_dict"]}, "loops.fit_loop")
    if not _agree(fit, content["global_step"], content["epoch"], learner):
        raise RunError("its counters of steps and epochs contradict each other")


def _agree(fit: dict[str, Any], step: int, epoch: int, learner: Learner) -> bool:
    trainer = learner.settings.trainer
    parts = step * trainer.accumulate
    steps = fit["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["total"]
    batches, epochs = fit["epoch_loop.batch_progress"], fit["epoch_progress"]["current"]
    done = parts - epoch * (learner.steps // trainer.epochs) * trainer.accumulate
    return (
        0 < step <= learner.steps
        and epoch == (step - 1) // (learner.steps // trainer.epochs)
        and steps == {"ready": step, "completed": step}
        and batches["total"]["ready"] == parts
        and batches["current"]["ready"] == done
        # In the middle of an epoch the last batch is not yet done with.
        and parts - batches["total"]["completed"] == done - batches["current"]["completed"]
        and parts - batches["total"]["completed"] in (0, 1)
        and (epochs["ready"], epochs["completed"]) == (epoch + 1, epoch)
        and fit["state_dict"] == {"combined_loader": [{"taken": parts}]}
    )


def _check_optimiser(content: dict[str, Any], learner: Learner, pattern: Pattern) -> None:
    """All but its moments follows from the settings and the step."""
    step, chosen = content["global_step"], learner.settings.optimiser
    (state,), (scheduled,), (expected,) = content["optimizer_states"], content["lr_schedulers"], pattern.groups
    (group,) = state["param_groups"]
    _compare(state["state"], pattern.content["optimizer_states"][0]["state"], "its optimiser")
    rate = chosen.rate(step / learner.steps)
    same = all(math.isclose(found, rate, rel_tol=1e-9) for found in (group["lr"], *scheduled["_last_lr"]))
    same &= (scheduled["last_epoch"], scheduled["_step_count"]) == (step, step + 1)
    same &= all(scheduled[key] == pattern.schedule[key] for key in ("base_lrs", "lr_lambdas"))
    same &= all(group[key] == expected[key] for key in expected.keys() & group.keys() - {"lr"})
    if not same or not group.keys() >= {"lr", "params", "initial_lr", "weight_decay"}:
        raise RunError("its optimiser is not the one that the settings describe, at this step")
    for moments in state["state"].values():
        if "step" in moments and moments["step"].item() != step:
            raise RunError("its optimiser has made another number of steps")
        if "exp_avg_sq" in moments and bool((moments["exp_avg_sq"] < 0).any()):
            raise RunError("its optimiser remembers squares that are negative")


def _check_own_optimiser(content: dict[str, Any], pattern: Pattern) -> None:
    """What one of somebody's own remembers is theirs; only that there is as much of it, and that it can be counted with."""
    step, (state,), (scheduled,) = content["global_step"], content["optimizer_states"], content["lr_schedulers"]
    if [len(group["params"]) for group in state["param_groups"]] != [len(group["params"]) for group in pattern.groups]:
        raise RunError("its optimiser has other groups of parameters than the one that the settings name")
    if (scheduled["last_epoch"], scheduled["_step_count"]) != (step, step + 1):
        raise RunError("its learning rate is not that of this step")
    _check_finite(state, "its optimiser")
    _check_finite(scheduled, "its learning rate")


def _check_finite(found: Any, where: str) -> None:
    """All tensors, however deep; bare numbers may be limits that nothing reaches."""
    if isinstance(found, Tensor):
        if found.is_floating_point() and not bool(found.isfinite().all()):
            raise RunError(f"{where} holds numbers that are not finite")
    elif isinstance(found, dict | list | tuple):
        for item in found.values() if isinstance(found, dict) else found:
            _check_finite(item, where)


def _of_ones_own(learner: Learner) -> set[str]:
    """What callbacks of one's own are called; what they remember is theirs to check."""
    return {callback.state_key for callback in learner.own_callbacks}


def _check_callbacks(callbacks: Any, learner: Learner) -> None:
    """What calibration chose: sweeps of every block, within what the settings allow."""
    settings = learner.settings
    calibrated, metered = settings.calibrates, not settings.hardware.is_ideal
    expected = ({"Calibrating"} if calibrated else set()) | ({"FidelityMeter"} if metered else set())
    if not isinstance(callbacks, dict) or set(callbacks) - _of_ones_own(learner) != expected:
        raise RunError("what its callbacks remember is not what this run's would")
    if metered:
        _check_fidelity(callbacks["FidelityMeter"])
    if not calibrated:
        return
    match callbacks["Calibrating"]:
        case {"due": int(due), "tunings": list(tunings)} if 0 <= due <= learner.steps + LATEST and len(tunings) == len(
            learner.model.chain
        ):
            for tuning in tunings:
                _check_tuning(tuning, settings.relaxation.steps, settings.gradient.steps)
        case _:
            raise RunError("its calibration is incomplete")


def _check_fidelity(kept: Any) -> None:
    """What the meter measured last: a few numbers by their names."""
    match kept:
        case {"last": dict(last), **rest} if not rest and last.keys() == set(METERED):
            if all(isinstance(value, float) and abs(value) < 1e18 for value in last.values()):
                return
    raise RunError("its fidelities are not those that a meter measures")


def _check_tuning(tuning: Any, most_free: int, most_nudged: int) -> None:
    match tuning:
        case {"free": int(free), "nudged": int(nudged), "omega": float(omega), **rest}:
            also = rest.pop("nudged_omega", 1.0)  # which earlier versions had no word for
            sound = isinstance(also, float) and min(omega, also) > 0 and max(omega, also) < 2
            if not rest and sound and 0 < free <= most_free and 0 < nudged <= most_nudged:
                return
    raise RunError("its calibration has impossible sweeps")


def _check_history(history: Any, epoch: int) -> None:
    """A row for every epoch that is done; at the end of one, that one is."""
    try:
        for number, row in enumerate(history, 1):
            if not all(type(value) in (int, float) for value in row.values()):
                raise ValueError("a row holds something else than numbers")
            check_row(row, number)
            if row.keys() != history[0].keys() or len(row) > 20:
                raise ValueError("rows have different columns")
        if len(history) not in (epoch, epoch + 1):
            raise ValueError(f"there are {len(history)} rows in epoch {epoch + 1}")
    except ValueError as error:
        raise RunError(f"its history of epochs is not whole: {error}") from None
