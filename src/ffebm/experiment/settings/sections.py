"""The settings of a training run, section by section, and what each may be."""

from __future__ import annotations

import math
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import Field, PrivateAttr, field_validator, model_validator

from ffebm.checks import brief
from ffebm.experiment.files import write_atomically
from ffebm.experiment.settings.duration import in_words
from ffebm.experiment.settings.hardware import Hardware
from ffebm.experiment.settings.paths import absolute
from ffebm.experiment.settings.resistive import Resistive
from ffebm.experiment.settings.section import Section
from ffebm.rules import Order, block_sizes, check_skips, free_order

__all__ = [
    "MOST_SWEEPS",
    "Data",
    "DataName",
    "Gradient",
    "Hardware",
    "Model",
    "Name",
    "Optimiser",
    "Paper",
    "Parts",
    "PhaseSection",
    "Relaxation",
    "Score",
    "Settings",
    "Trainer",
]
__dir__ = __all__.copy

MOST_LAYERS = 1000
MOST_UNITS = 10_000_000  # channels or units of a layer: products of them, pixels included, still are 64-bit numbers
MOST_SWEEPS = 100_000  # of a phase
FIRST_RATE = 0.04  # of the largest learning rate, where it rises

DataName = Literal["digits", "cifar10", "cifar100", "imagenet32", "mnist", "fashion-mnist", "folder", "given"]


class Data(Section):
    """What is learnt."""

    name: DataName = Field(
        default="digits", description="the data set; `folder` is your own, and `given` what a program hands over"
    )
    root: Path | None = Field(
        default=None, strict=False, description="folder of the data sets; else the environment variable FFEBM_DATA"
    )
    size: int | None = Field(default=None, ge=1, le=1024, description="pixels of a side to bring your own images to")
    colours: Literal["grey", "colour"] | None = Field(default=None, description="of your own images; none: as they are")
    test_part: float = Field(
        default=0.2, gt=0, lt=1, description="of each class of your own images, where no test images are apart"
    )
    validation: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="part of the training images to test on in place of the test images: to choose settings by",
    )
    test_seed: int = Field(default=0, ge=0, lt=2**31, description="that draws images to test on from those for training")
    crop_padding: int = Field(
        default=0, ge=0, le=1024, description="random crops after padding edges by this many pixels; 0 for none"
    )
    flip: bool = Field(default=False, description="mirror every second image, at random")
    normalise: bool = Field(default=True, description="bring pixels to mean 0 and spread 1, by channel; else 0 to 1")
    workers: int = Field(default=0, ge=0, le=1024, description="processes that prepare batches; the batches are the same")

    def at(self, root: Path) -> Data:
        """The same data in another folder."""
        return self.model_copy(update={"root": absolute(root)})

    @field_validator("root")
    @classmethod
    def _absolute(cls, root: Path | None) -> Path | None:
        """A run that is re-made from another folder must find its data."""
        return None if root is None else absolute(root)


class Model(Section):
    """The layers, and how they are cut into blocks."""

    channels: list[int] = Field(default=[16, 16, 32, 32], description="of the convolutional layers, first to last")
    dense: list[int] = Field(default=[], description="units of the fully connected layers behind them")
    pooled: list[int] = Field(default=[3], description="numbers of the layers, from 1, with pooling in front of them")
    pooling: Literal["max", "average", "soft"] = Field(default="max", description="over 2 × 2 units")
    strides: list[int] = Field(default=[], description="of the convolutions, first to last; empty where all are 1")
    skips: list[list[int]] = Field(
        default=[], description="skip connections inside blocks, each [from, to] two layers, numbered from 1"
    )
    split: int | list[int] = Field(default=2, description="layers per block, or the size of every block")
    width: float = Field(
        default=1.0, gt=0, description="scales all channels and dense units; keeps the gain of initial weights"
    )
    slope: float = Field(default=0.5, gt=0, description="of the activation clamp(slope · v, 0, 1)")
    clamped_outputs: Literal["all", "max-pooled"] | list[int] = Field(
        default="max-pooled",
        description="numbers of the blocks, from 1, with a clamped output; max-pooled: where only that lets pooling settle",
    )
    feedback: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="how much of a current comes back in blocks; none: 1, or less where a limit would let too little pass",
    )
    max_contraction: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="a sweep leaves at most this part of the way, whatever is learnt",
    )
    start: float | None = Field(default=None, gt=0, description="size that a first batch brings every layer to")
    batch_norm: Literal["all", "first", "off"] = Field(default="all", description="blocks whose digital stage normalises")
    variance: float | None = Field(
        default=None, gt=0, description="V of the Gaussian orthogonal ensemble; none for torch's default"
    )
    nudge: Literal["elastic", "stationary"] | None = Field(
        default=None, description="how the last block is nudged; none: elastic, but stationary on hardware"
    )
    readout: Literal["linear", "direct"] = Field(
        default="linear", description="behind the last block; direct: its last layer has a unit for each class"
    )
    criterion: Literal["cross-entropy", "squared"] = Field(
        default="cross-entropy", description="what is learnt by; squared: half the squared distance to 1 for the class, else 0"
    )

    @field_validator("skips")
    @classmethod
    def _pairs(cls, value: list[list[int]]) -> list[list[int]]:
        for pair in value:
            if len(pair) != 2:
                raise ValueError(f"a skip connection is a pair [from, to] of two layers, such as [[1, 3]], not {brief(pair)}")
        return value

    @field_validator("channels", "dense", "pooled", "strides")
    @classmethod
    def _counts(cls, value: list[int]) -> list[int]:
        if min(value, default=1) < 1:
            raise ValueError("whole numbers of at least 1 are needed")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        layers = len(self.channels) + len(self.dense)
        if not layers:
            raise ValueError("a model needs at least one layer: give `channels` or `dense`")
        if layers > MOST_LAYERS:
            raise ValueError(f"{layers:,} layers are asked for, and {MOST_LAYERS:,} are the most; leave some out")
        largest = self.width * max(self.channels + self.dense)
        if largest > MOST_UNITS:
            raise ValueError(
                f"`width` makes the largest layer {largest:.3g} channels or units, and {MOST_UNITS:,} are the most; "
                "take a smaller `width`"
            )
        blocks = self.blocks  # refuses a split that does not fit
        check_skips(self.skips, self.block_sizes)
        if self.strides and len(self.strides) != len(self.channels):
            raise ValueError(
                f"`strides` is {brief(self.strides)}, and {len(self.channels)} layers are convolutional; "
                "give one for each, or [] where all are 1"
            )
        if max(self.pooled, default=0) > len(self.channels):
            raise ValueError(f"`pooled` names layer {max(self.pooled)}, but {len(self.channels)} are convolutional")
        if isinstance(self.clamped_outputs, list) and not set(self.clamped_outputs) <= set(range(1, blocks + 1)):
            raise ValueError(
                f"`clamped_outputs` is {brief(self.clamped_outputs)}, but blocks go from 1 to {blocks}; set it, too, "
                "for example to max-pooled"
            )
        return self

    @property
    def layers(self) -> int:
        return len(self.channels) + len(self.dense)

    @property
    def block_sizes(self) -> list[int]:
        return block_sizes(self.layers, self.split)

    @property
    def blocks(self) -> int:
        return len(self.block_sizes)

    @property
    def clamped(self) -> list[int]:
        """Numbers of the blocks, from 1, whose output is clamped."""
        if isinstance(self.clamped_outputs, list):
            return self.clamped_outputs
        ends = enumerate(zip(self.block_sizes, accumulate(self.block_sizes), strict=True), 1)
        if self.clamped_outputs == "all":
            return [number for number, _ in ends]
        inside = self.pooling == "max"  # and not in the digital stage, where that of a block's first layer is
        return [number for number, (size, last) in ends if inside and size > 1 and last in self.pooled]


class PhaseSection(Section):
    """A phase of so many sweeps."""

    @field_validator("steps", mode="before", check_fields=False)
    @classmethod
    def _ends(cls, steps: Any) -> Any:
        """Say how long it would take, before the limit alone is named."""
        if isinstance(steps, int) and steps > MOST_SWEEPS:
            raise ValueError(
                f"{MOST_SWEEPS:,} sweeps are the most: at a millisecond a sweep, so many take {in_words(steps // 1000)}; "
                "with a tolerance a phase ends when it has settled"
            )
        return steps


class Relaxation(PhaseSection):
    """The free phase of every block."""

    steps: int = Field(default=20, ge=1, le=MOST_SWEEPS, description="sweeps, or their maximum when there is a tolerance")
    tolerance: float | None = Field(default=3e-3, gt=0, description="stop a sample when no unit moves by more than this")
    order: Order | None = Field(
        default=None, description="which layers move first; none: layer by layer in blocks with a limit"
    )
    omega: float = Field(default=1.1, gt=0, lt=2, description="how far a sweep goes; above 1, fewer of them settle a block")


class Gradient(PhaseSection):
    """How blocks get their gradient: equilibrium propagation, the paper's implicit differentiation, or others."""

    kind: Literal["ep", "id", "recurrent-backprop", "bptt", "bp"] = Field(
        default="ep", description="the estimator; bp: plain backprop, blocks make one sweep upward, without a limit"
    )
    steps: int = Field(
        default=10,
        ge=1,
        le=MOST_SWEEPS,
        description="nudged sweeps (ep), recorded ones (id), adjoint iterations; bptt and bp have none",
    )
    tolerance: float | None = Field(default=None, gt=0, description="stop those early; relative to beta, or to the error")
    order: Order | None = Field(default=None, description="of those sweeps; none for the one that wastes no half-sweep")
    omega: float = Field(default=1.1, gt=0, lt=2, description="how far those sweeps go")
    quality: float = Field(
        default=0.99, gt=0, lt=1, description="smallest cosine with settled phases' gradient, for calibrated sweeps"
    )
    beta: float = Field(default=0.05, gt=0, description="strength of the nudge (ep)")
    automatic_beta: bool = Field(default=False, description="choose beta for every block and batch, by read-outs (ep)")
    variant: Literal["centered", "positive", "negative", "one-sided", "random-sign", "small-signal"] | None = Field(
        default=None, description="of the nudge (ep); none: one suits the blocks"
    )
    scale: Literal["unit", "paper"] = Field(
        default="unit", description="nudge by the direction of the error, or by its size too (ep)"
    )
    hold_pooling: bool = Field(default=True, description="max-pooling inside blocks keeps its positions while nudged (ep)")


class Optimiser(Section):
    """Steps down the gradient; the rate rises along a line, if asked, and falls to its final value along half a cosine."""

    kind: Literal["adam", "adamw", "sgd"] = Field(default="adam", description="the algorithm")
    learning_rate: float = Field(default=1e-3, gt=0, description="the largest")
    warmup: float = Field(default=0.0, ge=0, lt=1, description="part of all steps in which the rate rises")
    final_learning_rate: float = Field(default=1e-6, ge=0, description="at the last step")
    weight_decay: float = Field(default=3e-4, ge=0, description="added to the gradient; in adamw, taken from the weights")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="of sgd; Adam has its own")
    clip: float | None = Field(default=None, gt=0, description="largest norm of a gradient, all parameters together")

    def rate(self, done: float) -> float:
        """The learning rate after this part of all steps."""
        if done < self.warmup:
            return self.learning_rate * (FIRST_RATE + (1 - FIRST_RATE) * done / self.warmup)
        fallen = (1 - math.cos(math.pi * (done - self.warmup) / (1 - self.warmup))) / 2
        return self.learning_rate + (self.final_learning_rate - self.learning_rate) * fallen


class Trainer(Section):
    """How long, on what, and how safely."""

    epochs: int = Field(default=10, ge=1, description="passes through the training images")
    batch: int = Field(default=64, ge=1, description="samples per step, over all devices and accumulated parts together")
    accumulate: int = Field(default=1, ge=1, description="parts a batch is cut into, one after the other, to save memory")
    test_batch: int = Field(default=500, ge=1, description="images tested at once, in each process")
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = Field(default="auto", description="what to compute on")
    devices: int = Field(default=1, ge=1, description="processes per node, each with a share of every batch (DDP)")
    nodes: int = Field(default=1, ge=1, description="machines")
    threads: int | None = Field(default=None, ge=1, le=4096, description="CPU threads per process; none shares all cores out")
    precision: Literal["32-true", "bf16-mixed", "64-true"] = Field(
        default="32-true", description="blocks keep 32 bits in bf16-mixed"
    )
    recompute: bool = Field(default=False, description="run digital stages twice rather than remember them, to save memory")
    sync_batch_norm: bool = Field(default=True, description="with several processes on GPUs, normalise over all of them")
    checkpoint_every: int = Field(default=100, ge=1, description="steps; the end of every epoch is saved besides")
    keep: int = Field(
        default=3, ge=2, description="checkpoints that are kept, the newest; an older one stands in for a damaged one"
    )
    deterministic: bool = Field(default=False, description="only algorithms that repeat their bits; see `ffebm train --help`")

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.batch < self.parts:
            raise ValueError(f"a batch of {self.batch} cannot be cut into {self.parts} parts (devices × nodes × accumulate)")
        return self

    @property
    def parts(self) -> int:
        """Into how many parts a batch is cut."""
        return self.processes * self.accumulate

    @property
    def processes(self) -> int:
        return self.devices * self.nodes


Name = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*(\.\w+)*$", max_length=200)]


class Parts(Section):
    """Code of your own, each as "module:name", run only where it is trusted."""

    _trusted: bool = PrivateAttr(default=True)  # what a program sets is its own code

    model: Name | None = Field(default=None, description="makes the model, from settings, the shape of images and classes")
    energy: Name | None = Field(default=None, description="makes the energy of a block, called as Hopfield is")
    estimator: Name | None = Field(default=None, description="a gradient estimator, or what makes one from settings")
    optimiser: Name | None = Field(default=None, description="makes the optimiser, from parameters and settings")
    callbacks: list[Name] = Field(default=[], description="of Lightning, or what makes each from settings")
    logger: Literal["csv", "wandb", "mlflow"] | Name | None = Field(
        default=None, description="besides TensorBoard: csv, wandb, mlflow, or your own, from the run's folder"
    )

    @property
    def trusted(self) -> bool:
        """Whether what they name may be imported."""
        return self._trusted

    def named(self) -> list[tuple[str, str]]:
        """Every setting that names code, with what it names."""
        several = [*self.model_dump(exclude={"callbacks"}).items(), *(("callbacks", name) for name in self.callbacks)]
        return [(f"parts.{key}", name) for key, name in several if name is not None and ":" in name]


class Score(Section):
    """A printed result, in per cent; the spread is over three seeds."""

    top1: float
    top1_spread: float
    top5: float | None = None
    top5_spread: float | None = None
    hours: str = Field(default="", description="wall-clock on an A100, h:mm")


class Paper(Section):
    """What the paper reports for a preset."""

    table: str
    ep: Score
    id: Score


class Settings(Section):
    """Everything that a run depends on."""

    description: str = Field(default="", max_length=1000)
    seed: int = Field(default=0, ge=0, lt=2**31, description="of weights, order, crops and flips")
    sweeps: Literal["calibrated", "settle", "plain"] = Field(
        default="calibrated",
        description="as few as gradient.quality allows, or as below; plain: without tolerance or omega",
    )
    data: Data = Data()
    model: Model = Model()
    resistive: Resistive = Resistive()
    relaxation: Relaxation = Relaxation()
    gradient: Gradient = Gradient()
    optimiser: Optimiser = Optimiser()
    trainer: Trainer = Trainer()
    hardware: Hardware = Hardware()
    parts: Parts = Parts()
    paper: Paper | None = None

    @model_validator(mode="after")
    def _has_strength(self) -> Self:
        if self.gradient.automatic_beta and self.gradient.kind == "ep" and self.effective[1].variant == "small-signal":
            raise ValueError(
                "`gradient.automatic_beta` is true, and small-signal nudges, which blocks with a limit get, have no strength; "
                "take gradient.variant=centered, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _read_out(self) -> Self:
        if self.hardware.is_ideal:
            return self
        kind, variant = self.gradient.kind, self.gradient.variant
        if kind != "ep" or variant == "small-signal":
            got = f"`gradient.kind` is {kind}" if kind != "ep" else "`gradient.variant` is small-signal"
            raise ValueError(
                f"{got}, and blocks that run on hardware are known by their readings alone; take gradient.kind=ep with "
                "gradient.variant=centered, or leave [hardware] out"
            )
        return self

    @model_validator(mode="after")
    def _circuits_fit(self) -> Self:
        circuits = self.resistive.blocks
        if isinstance(circuits, list) and max(circuits, default=0) > self.model.blocks:
            raise ValueError(f"`resistive.blocks` names block {max(circuits)}, and there are {self.model.blocks}")
        return self

    @property
    def relaxes(self) -> bool:
        """Whether blocks relax; by plain backprop they are layers like others."""
        return self.gradient.kind != "bp"

    @property
    def settles(self) -> bool:
        """Whether blocks do whatever they learn: all have a limit, or are circuits."""
        blocks = range(1, self.model.blocks + 1)
        return self.model.max_contraction is not None or all(map(self.resistive.is_circuit, blocks))

    @property
    def calibrates(self) -> bool:
        """Whether training chooses how many sweeps blocks make."""
        return self.sweeps == "calibrated" and self.relaxes

    @property
    def effective(self) -> tuple[Relaxation, Gradient]:
        """The free phase and the gradient as they are to be run."""
        if not self.relaxes:
            return Relaxation(steps=1, tolerance=None, order="upward", omega=1.0), self.gradient
        if self.sweeps != "plain":
            return self._relaxing, self._nudging
        plain = {"tolerance": None, "omega": 1.0}
        return self._relaxing.model_copy(update=plain), self._nudging.model_copy(update=plain)

    @property
    def _relaxing(self) -> Relaxation:
        """The free phase with the order that suits the blocks, where it is left open."""
        return self.relaxation.model_copy(update={"order": self.relaxation.order or free_order(self.settles)})

    @property
    def _nudging(self) -> Gradient:
        """The gradient with the variant and the order that suit the blocks, where they are left open."""
        limited = self.settles
        # Converters see nothing of a nudge that is infinitely small.
        variant = self.gradient.variant or ("small-signal" if limited and self.hardware.is_ideal else "centered")
        # Errors go down. Backprop runs through recorded sweeps in reverse, so those go up.
        by_layer: Order | None = ("downward" if self.gradient.kind == "ep" else "upward") if limited else None
        order = self.gradient.order or by_layer
        return self.gradient.model_copy(update={"variant": variant, "order": order})

    @property
    def nudge(self) -> Literal["elastic", "stationary"]:
        """How the last block is nudged: an elastic one goes through the digital readout at every sweep."""
        return self.model.nudge or ("elastic" if self.hardware.is_ideal else "stationary")

    @property
    def recipe(self) -> Settings:
        """Without what only says where a run happens: the folder of its data, threads, devices; and with outputs by number."""
        place = {"threads": None, "accelerator": "auto", "devices": 1, "nodes": 1}
        data = self.data.model_copy(update={"root": None, "workers": 0})
        model = self.model.model_copy(update={"clamped_outputs": self.model.clamped, "nudge": self.nudge})
        trainer = self.trainer.model_copy(update=place)
        return self.model_copy(
            update={"data": data, "model": model, "gradient": self._nudging, "relaxation": self._relaxing, "trainer": trainer}
        )

    def from_elsewhere(self) -> Settings:
        """The same as a file from anywhere: code that they name is not run."""
        if not self.parts.named():
            return self
        parts = self.parts.model_copy()
        parts._trusted = False
        return self.model_copy(update={"parts": parts})

    def save(self, path: Path) -> None:
        write_atomically(path, tomli_w.dumps(self.as_toml()).encode())
