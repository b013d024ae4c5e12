"""Settings read from ``GRADFLOW_*`` variables, in this one place (listed in docs/configuration.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from hvd_gradflow.errors import ConfigError, did_you_mean, unknown_name

PREFIX = "GRADFLOW_"


def _setting(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float = float("inf"),
    choices: tuple = (),
    same: bool = True,
    unit: str = "",
    least: float = 0.0,
):
    """Describe one setting; ``same`` marks those that all ranks must agree on.

    With a ``unit``, what lies between 0 and ``least`` is taken for a value in another one.
    """
    described = {"doc": doc, "low": low, "high": high, "choices": choices, "same": same}
    return field(default=default, metadata={**described, "unit": unit, "least": least})


@dataclass(frozen=True)
class Config:
    """All settings of one process; construct by :func:`load` to read the environment."""

    backend: str = _setting("cpu", "kernels: compiled (cpu) or reference (numpy)", choices=("cpu", "numpy"))
    simd: str = _setting(
        "auto",
        "instruction level of the compiled kernels",
        choices=("auto", "avx512", "avx2", "portable"),
        same=False,
    )
    device: str = _setting(
        "auto",
        "where gradients on a GPU are compressed: there (auto), on the host (host), or the name of the only"
        " device that may do it",
        same=False,
    )
    shm_dir: str = _setting("/dev/shm", "directory of the file that ranks of one node share", same=False)
    ranks_per_node: int = _setting(0, "treat every n local ranks as a node of their own; 0: by host", low=0)
    chunk_kib: int = _setting(256, "KiB of uncompressed gradient in one chunk", low=4, high=2**20)
    window: int = _setting(
        0, "chunks under way to one peer, in one direction; 0: 16, by udp 64, with a deadline 1024", low=0
    )
    eager_kib: int = _setting(
        60, "KiB of a payload whose message MPI sends without asking the receiver", low=4, high=2**20
    )
    shm_slots: int = _setting(8, "chunks of each rank that fit into the shared memory of its node", low=2)
    bucket_mib: float = _setting(16.0, "MiB of uncompressed gradient in one bucket", low=0.001)
    min_elements: int = _setting(1024, "gradients with fewer elements are exchanged uncompressed", low=0)
    submit_warn: float = _setting(
        60.0, "seconds until ranks that have not submitted a tensor are named", low=0.01
    )
    submit_timeout: float = _setting(1800.0, "seconds until they make the job fail", low=0.01)
    progress_timeout: float = _setting(
        60.0, "seconds without progress of a peer or link until failure", low=0.05
    )

    transport: str = _setting(
        "mpi",
        "what carries messages between nodes: MPI, or authenticated datagrams for links that lose packets",
        choices=("mpi", "udp"),
    )
    deadline_ms: float = _setting(
        0.0,
        "milliseconds after which the part of a gradient that later parts have overtaken is left for the next"
        " step (transport udp); 0: every byte arrives",
        low=0,
        high=60_000,
        unit="milliseconds",
        least=0.1,
    )
    udp_interfaces: str = _setting(
        "",
        "interfaces or addresses, comma-separated, one for each path (the n-th of one rank talks to the n-th"
        " of another); empty: the addresses by which ranks reach each other",
        same=False,
    )
    udp_ports: str = _setting("", "ports to choose from, as 20000-20100; empty: any free one", same=False)
    udp_mtu: int = _setting(1500, "bytes of an IP packet that every link carries", low=576, high=9216)
    udp_parity: int = _setting(
        1, "whether parity follows the last packets on links that lose some", choices=(0, 1)
    )

    analyze: str = _setting(
        "", "directory in which statistics of the gradients are recorded, for `gradflow analyze`", same=False
    )
    analyze_every: int = _setting(25, "steps from one sample of these to the next", low=1, same=False)

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            wanted = expected(f.name, value)
            if wanted:
                raise ConfigError(f"{variable(f.name)}={value!r}: expected {wanted}")

    def with_options(self, **options: Any) -> Config:
        """Return a copy with some settings changed; unknown names are refused."""
        known = {f.name for f in fields(self)}
        for name in options:
            if name not in known:
                raise unknown_name("setting", name, known)
        return replace(self, **options)

    def resolved(self) -> Config:
        """Return a copy in which what depends on other settings is decided.

        Raises
        ------
        ConfigError
            For settings that exclude each other.
        """
        if not self.deadline_ms:
            return replace(self, window=self.window or (64 if self.transport == "udp" else 16))
        if self.transport != "udp":
            raise ConfigError(
                f"GRADFLOW_DEADLINE_MS={self.deadline_ms:g} with GRADFLOW_TRANSPORT={self.transport}: only"
                " udp lets go of what is late; set GRADFLOW_TRANSPORT=udp on all ranks, or no deadline"
            )
        # Much is under way, in small pieces: so that little is late, and rooms for it are small.
        return replace(self, window=self.window or 1024, chunk_kib=min(self.chunk_kib, 32))

    def shared(self) -> dict[str, Any]:
        """Return the settings that all ranks must agree on."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.metadata["same"]}


def expected(name: str, value: Any) -> str | None:
    """Return what is expected of a setting, in words; None if `value` will do."""
    f = Config.__dataclass_fields__[name]
    low, high, choices = f.metadata["low"], f.metadata["high"], f.metadata["choices"]
    unit, least = f.metadata["unit"], f.metadata["least"]
    if choices and value not in choices:
        return f"one of {', '.join(map(str, choices))}"
    if low is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if 0 < value < least:
            return f"{unit}, 0 or at least {least:g}"
        if low <= value <= high and value < float("inf"):
            return None
    bounds = f"at least {low:g}" + (f" and at most {high:g}" if high != float("inf") else "")
    return f"a finite number of {bounds}" + (f", in {unit}" if unit else "")


# Read by setup.py; they may still be set when a program runs.
BUILD_VARIABLES = {PREFIX + name for name in ("WITH_CUDA", "WITH_HIP", "BUILD_EXTENSIONS", "ANNOTATE")}


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + name.upper()


def load(environ: Mapping[str, str] | None = None) -> Config:
    """Read the settings from the environment.

    Raises
    ------
    ConfigError
        For a ``GRADFLOW_*`` variable that does not exist, or a value that cannot be read.
    """
    environ = os.environ if environ is None else environ
    kinds = {variable(f.name): f for f in fields(Config)}
    values: dict[str, Any] = {}
    for key, text in environ.items():
        if not key.startswith(PREFIX) or key in BUILD_VARIABLES:
            continue
        if key not in kinds:
            raise ConfigError(
                f"unknown variable {key}{did_you_mean(key, kinds)}; known: {', '.join(sorted(kinds))}"
            )
        f = kinds[key]
        kind: Any = type(f.default)
        try:
            values[f.name] = kind(text)
        except ValueError:
            raise ConfigError(
                f"{key}={text!r}: expected {'an integer' if kind is int else 'a number'}"
            ) from None
    return Config(**values)
