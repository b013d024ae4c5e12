"""Average or sum, and the factors around it."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_gradflow.errors import unknown_name

OPS = ("average", "sum")


@dataclass(frozen=True)
class Factors:
    """What a sum over ranks is multiplied with, and when (docs/architecture.md, "Scaling")."""

    node: float
    home: float
    post: float
    fold: float  # times a residual, when it is put back into an input

    @staticmethod
    def of(op: str, size: int, lossy: bool, prescale: float, postscale: float) -> Factors:
        """Return the factors of an op over `size` ranks.

        Under a codec that loses bits the ranks' sums are scaled before they are encoded, to the size of
        the average, so that no sum leaves the codec's range.
        """
        if op not in OPS:
            raise unknown_name("op", op, OPS)
        average = op == "average"
        fold = size / prescale if prescale else 0.0
        if lossy:
            return Factors(prescale / size, 1.0, postscale if average else postscale * size, fold)
        return Factors(1.0, prescale / size if average else prescale, postscale, fold)
