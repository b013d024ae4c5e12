"""What programs with checks share: they run on several ranks, and print an OK line a check."""

from __future__ import annotations

import sys
import time
import traceback

CHECKS = []


def check(function):
    """Register a check; it is run with the arguments that `run` is given."""
    CHECKS.append(function)
    return function


def run(rank: int, barrier, only, *arguments, before=lambda: None) -> None:
    """Run the checks, or those named in `only`, in order on all ranks."""
    start = time.perf_counter()
    for function in CHECKS:
        if only and function.__name__ not in only:
            continue
        before()
        try:
            function(*arguments)
        except BaseException:
            print(f"FAILED {function.__name__} on rank {rank}", flush=True)
            traceback.print_exc()
            raise
        barrier()
        if rank == 0:
            print(f"OK {function.__name__} {time.perf_counter() - start:.1f} s", flush=True)
    sys.stdout.flush()


def raises(kind, *parts: str):
    """Context manager: the block must raise `kind`, with all `parts` in its sentence."""
    return _Raises(kind, parts)


class _Raises:
    def __init__(self, kind, parts) -> None:
        self.kind, self.parts = kind, parts

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace) -> bool:
        assert kind is not None, f"nothing was raised, expected {self.kind}"
        if not issubclass(kind, self.kind):
            return False
        missing = [part for part in self.parts if part not in str(value)]
        assert not missing, f"{missing} missing in: {value}"
        return True
