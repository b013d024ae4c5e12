"""The networks of the training scripts."""

from __future__ import annotations

import torch
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


def plain_net() -> nn.Module:
    """Two convolutions and two dense layers, without batch norm, for 28 x 28 images: 824,458 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
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


def resnet() -> nn.Module:
    """Basic blocks of 32, 64 and 128 channels after a first convolution of stride 2: 308,074 parameters.

    A residual network that learns on one core.
    """
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        Residual(32, 32, 1),
        Residual(32, 64, 2),
        Residual(64, 128, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


class Block(nn.Module):
    """A decoder block with the norms before attention and dense layers (Radford et al. 2019, section 2.3)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dense1 = nn.Linear(width, 4 * width)
        self.dense2 = nn.Linear(4 * width, width)

    def forward(self, x):
        n, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(n, length, width))
        return x + self.dense2(nn.functional.gelu(self.dense1(self.norm2(x))))


class CharacterTransformer(nn.Module):
    """Predicts the next character at every place; weights start as in Radford et al. 2019."""

    def __init__(self, symbols: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.symbol = nn.Embedding(symbols, width)
        self.place = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)
        for name, p in self.named_parameters():
            if p.ndim > 1:
                # The paths that end in the sum of all blocks start smaller, by how many there are.
                ends = name.endswith(("out.weight", "dense2.weight"))
                nn.init.normal_(p, std=0.02 / (2 * layers) ** 0.5 if ends else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, x):
        """Return logits (N x length x symbols) of what follows each of the characters x (N x length)."""
        hidden = self.symbol(x) + self.place(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


def small_text_net() -> nn.Module:
    """Four blocks of width 128, for 63 characters in contexts of 64: 817,664 parameters."""
    return CharacterTransformer(63, 64, width=128, layers=4, heads=4)


def text_net() -> nn.Module:
    """The same of width 192: 1,816,320 parameters, for twice the time."""
    return CharacterTransformer(63, 64, width=192, layers=4, heads=6)


def tiny_text_net() -> nn.Module:
    """Two blocks of width 96: 242,112 parameters."""
    return CharacterTransformer(63, 64, width=96, layers=2, heads=3)


class Recommender(nn.Module):
    """Ratings of pairs of a user and a film: the dot product of their vectors, and two dense layers of both.

    With `sparse` the gradients of the vectors have only the rows of a batch's users and films.
    """

    def __init__(self, users: int, films: int, width: int = 32, sparse: bool = False) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width, sparse=sparse)
        self.films = nn.Embedding(films, width, sparse=sparse)
        self.rest = nn.Sequential(nn.Linear(2 * width, 64), nn.ReLU(), nn.Linear(64, 1))
        for table in (self.users, self.films):
            nn.init.uniform_(table.weight, -0.05, 0.05)  # as Keras does
        nn.init.constant_(self.rest[-1].bias, 3.5)  # stars, of 0.5 to 5

    def forward(self, x):
        """Return the ratings (N) of users and films x (N x 2)."""
        user, film = self.users(x[:, 0]), self.films(x[:, 1])
        return (user * film).sum(1) + self.rest(torch.cat((user, film), 1)).squeeze(1)


FASHION_MODELS = {"small": small_net, "plain": plain_net, "resnet": resnet, "resnet18": resnet18}
TEXT_MODELS = {"small": small_text_net, "large": text_net, "tiny": tiny_text_net}
