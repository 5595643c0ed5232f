"""Your own energy in thirty lines: a softmax memory, as a block that trains by equilibrium propagation."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from ffebm import Energy, EnergyBlock, FixedPoint, State, identity


class Memory(Energy):
    """E(s) = ½‖s‖² − log Σ exp(M s) − s·x: the state is drawn to the stored patterns M that it resembles."""

    def __init__(self, units: int, patterns: int) -> None:
        super().__init__([identity(0.5)])  # one layer, unclamped, relaxing by gradient descent with step ½
        self.patterns = nn.Parameter(torch.randn(patterns, units) / units**0.5)

    def forward(self, state: State, x: Tensor) -> Tensor:
        (s,) = state
        return s.square().sum(1) / 2 - torch.logsumexp(s @ self.patterns.T, 1) - (s * x).sum(1)  # (B,), never reduced


torch.manual_seed(0)
images, labels = (torch.tensor(a) for a in load_digits(return_X_y=True))
images = images.float() / 16
relax = FixedPoint(200, tolerance=1e-4)
model = nn.Sequential(nn.Linear(64, 32), EnergyBlock(Memory(32, 50), relax), nn.Linear(32, 10))
optimiser = torch.optim.Adam(model.parameters(), 0.01)
for epoch in range(5):
    for batch in torch.randperm(1500).split(50):
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimiser.zero_grad()
        loss.backward()  # equilibrium propagation through the memory, backprop through the rest
        optimiser.step()
    print(f"epoch {epoch + 1}: test accuracy {(model(images[1500:]).argmax(1) == labels[1500:]).float().mean():.1%}")
