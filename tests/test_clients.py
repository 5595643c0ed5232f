"""Libraries that nobody here wrote, at work on blocks and models: docs/works-with.md has a line for each test."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ffebm import FFEBM, Dense, DenseLayer, EnergyBlock, FixedPoint, Hopfield, build

FEATURES, CLASSES = 6, 3


def data(count: int = 96) -> tuple[Tensor, Tensor]:
    """The class is the largest of the first features."""
    x = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(0))
    return x, x[:, :CLASSES].argmax(1)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    block = EnergyBlock(Hopfield([Dense(16, 12)]), FixedPoint(15), max_contraction=0.5)
    return nn.Sequential(nn.Linear(FEATURES, 16), block, nn.Linear(12, CLASSES))


def model() -> FFEBM:
    torch.manual_seed(0)
    return build((FEATURES,), [DenseLayer(12)] * 4, 2, CLASSES, max_contraction=0.5)


def test_accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    trained = model()
    optimiser = torch.optim.Adam(trained.parameters(), 0.01)
    loader = DataLoader(TensorDataset(*data()), batch_size=16)
    wrapped, optimiser, loader = accelerator.prepare(trained, optimiser, loader)
    losses = []
    for _ in range(8):
        for x, y in loader:
            with accelerator.accumulate(wrapped):
                loss = wrapped(x, y).losses.mean()
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
                optimiser.step()
                optimiser.zero_grad()
            losses.append(loss.item())
    assert sum(losses[-6:]) < 0.8 * sum(losses[:6])


def test_transformers_trainer(tmp_path: Path) -> None:
    """A model for it takes names, and returns the loss first."""
    from transformers import Trainer, TrainingArguments

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model()

        def forward(self, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
            found = self.model(features, labels)
            return {"loss": found.losses.mean(), "logits": found.logits}

    x, y = data()
    rows = [{"features": features, "labels": label} for features, label in zip(x, y, strict=True)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=8,
        per_device_train_batch_size=16,
        learning_rate=0.02,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, of what it stands on
        trainer = Trainer(Named(), arguments, train_dataset=rows, eval_dataset=rows)
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        assert trainer.evaluate()["eval_loss"] < 0.7 * before


def test_skorch_in_a_grid_search_of_scikit_learn() -> None:
    from sklearn.model_selection import GridSearchCV
    from skorch import NeuralNetClassifier

    x, y = data()
    classifier = NeuralNetClassifier(
        net, criterion=nn.CrossEntropyLoss, optimizer=torch.optim.Adam, max_epochs=6, batch_size=16, verbose=0, train_split=None
    )
    search = GridSearchCV(classifier, {"lr": [1e-5, 0.02]}, cv=2, refit=True)
    search.fit(x.numpy(), y.numpy())
    assert search.best_params_ == {"lr": 0.02}
    assert (search.predict(x.numpy()) == y.numpy()).mean() > 0.6


def test_optuna() -> None:
    import optuna

    x, y = data()

    def loss(trial: Any) -> float:
        trained = net()
        optimiser = torch.optim.Adam(trained.parameters(), trial.suggest_float("rate", 1e-4, 0.1, log=True))
        for _ in range(10):
            optimiser.zero_grad()
            found = nn.functional.cross_entropy(trained(x), y)
            found.backward()
            optimiser.step()
        return found.item()

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(loss, n_trials=4)
    assert study.best_value < 1.1


def test_captum_attributions_add_up_to_the_change_of_the_output() -> None:
    """Completeness of integrated gradients: the path of the outputs must have no jumps."""
    from captum.attr import IntegratedGradients

    trained, (x, y) = net(), data(8)
    attributions, missing = IntegratedGradients(trained).attribute(x, target=y, n_steps=64, return_convergence_delta=True)
    change = (trained(x) - trained(torch.zeros_like(x))).gather(1, y.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(attributions.sum(1).float(), change.detach(), atol=2e-3, rtol=0)
    assert missing.abs().max() < 2e-3


def test_onnxruntime(tmp_path: Path) -> None:
    import onnxruntime

    trained, (x, _) = net().eval(), data(4)
    path = tmp_path / "net.onnx"
    expected = trained(x).detach().numpy()  # once before: its limit has not seen the weights yet
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        torch.onnx.export(trained, (x,), path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(found, expected, atol=1e-5)
