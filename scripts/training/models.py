"""The networks of the training scripts."""

from __future__ import annotations

from torch import nn


def digits_net() -> nn.Module:
    """Two convolutions and two dense layers for 8 x 8 images: 151,306 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def small_net() -> nn.Module:
    """Three convolutions with batch norm and two dense layers for 28 x 28 images: about 0.8 M parameters."""

    def stage(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(
        *stage(1, 16),
        *stage(16, 32),
        *stage(32, 96),
        nn.Flatten(),
        nn.Linear(96 * 3 * 3, 896),
        nn.ReLU(),
        nn.Linear(896, 10),
    )


class Residual(nn.Module):
    """The basic block of He et al. 2016, figure 2."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = stride == 1 and inputs == outputs
        self.skip = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x):
        return nn.functional.relu(self.path(x) + self.skip(x))


def resnet18() -> nn.Module:
    """ResNet-18 (He et al. 2016, table 1) with a first convolution of 3 x 3: 11.2 M parameters."""
    blocks, inputs = [], 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Residual(inputs, outputs, stride), Residual(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, 1, 1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


FASHION_MODELS = {"small": small_net, "resnet18": resnet18}
