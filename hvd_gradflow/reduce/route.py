"""By what gradients travel between nodes, where a script says so and not the environment."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hvd_gradflow import config
from hvd_gradflow.errors import ConfigError


@dataclass(frozen=True)
class Route:
    """What a script says of the transport; None is what the environment says.

    Parameters
    ----------
    transport : {"mpi", "udp"}, optional
        As ``GRADFLOW_TRANSPORT``.
    deadline_ms : float, optional
        As ``GRADFLOW_DEADLINE_MS``, in milliseconds; 0: every byte arrives. With ``transport="mpi"`` there is
        none, whatever the environment says.

    Raises
    ------
    ConfigError
        For a value that cannot be, or a deadline by MPI.
    """

    transport: str | None = None
    deadline_ms: float | None = None

    def __post_init__(self) -> None:
        for name, value in self.given.items():
            wanted = config.expected(name, value)
            if wanted:
                raise ConfigError(f"{name}={value!r}: expected {wanted}")
        if not self.deadline_ms:
            return
        object.__setattr__(self, "deadline_ms", float(self.deadline_ms))  # as the environment's: 20 is 20.0
        if self.transport is None and config.load().transport != "udp":
            raise ConfigError(
                f"deadline_ms={self.deadline_ms:g} by MPI (GRADFLOW_TRANSPORT): only udp lets go of what is"
                ' late; write transport="udp" with it'
            )
        if self.transport == "mpi":
            raise ConfigError(
                f"deadline_ms={self.deadline_ms:g} with transport='mpi': only udp lets go of what is late"
            )

    @property
    def given(self) -> dict[str, Any]:
        """What was said."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def applied(self, settings: config.Config) -> config.Config:
        """Return settings of the environment, changed to what was said."""
        by_mpi = {"deadline_ms": 0.0} if self.transport == "mpi" else {}
        return settings.with_options(**by_mpi, **self.given)
