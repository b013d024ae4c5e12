"""What a training run is judged by; imports nothing heavy, so that a table of results needs no framework."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One figure of a summary: its key there, and how people read it."""

    key: str
    name: str
    unit: str
    factor: float
    digits: int

    def digits_of(self, value: float) -> str:
        """The value in this metric's unit, without the unit."""
        return f"{self.factor * value:.{self.digits}f}"


METRICS = {
    metric.key: metric
    for metric in (
        Metric("accuracy", "accuracy", "%", factor=100, digits=2),
        Metric("validation_rmse", "validation RMSE", "stars", factor=1, digits=4),
        Metric("validation_loss", "validation loss", "nats a character", factor=1, digits=4),
    )
}
