"""Speed of the GPU's kernels against its own copy within memory, in the same run: `make bench-gpu`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from hvd_gradflow.bench.device_codec import run_device_bench
from hvd_gradflow.device import arrays, devices
from hvd_gradflow.device.memory import TO_DEVICE, WITHIN, piece_table
from hvd_gradflow.errors import GradflowError


def seconds(device, stream, work: Callable[[], None], repeats: int) -> float:
    """Median seconds of a call and all that it queues, after one that does not count."""
    times = []
    for i in range(repeats + 1):
        start = time.perf_counter()
        work()
        stream.synchronize()
        if i:
            times.append(time.perf_counter() - start)
    return median(times)


def bucket(name: str, tensors: int, elements: int, repeats: int) -> dict[str, float | str]:
    """Time gathering many small tensors into a bucket, and scattering it, against a copy of as many bytes."""
    device = devices.available(name)
    stream, padded = device.stream(), -(-elements // 256) * 256
    n = tensors * padded
    memory = [device.allocate(4 * elements) for _ in range(tensors)]
    target, other, flag = device.allocate(4 * n), device.allocate(4 * n), device.allocate(4)
    views = [
        arrays.ArrayView(m.address, elements, arrays.FLOAT32, (elements,), (), True, False, m, repr(device))
        for m in memory
    ]
    table = piece_table([(view, i * padded) for i, view in enumerate(views)])
    pieces = device.allocate(table.nbytes)
    device.copy(pieces.address, table.ctypes.data, table.nbytes, TO_DEVICE)
    zeros = np.zeros(n, np.float32)
    device.copy(target.address, zeros.ctypes.data, zeros.nbytes, TO_DEVICE)
    moved = 4 * n + 4 * tensors * elements
    places = (target.address, n)
    copied = seconds(
        device, stream, lambda: device.copy(other.address, *places[:1], 4 * n, WITHIN, stream), repeats
    )
    scattered = seconds(
        device, stream, lambda: device.scatter(*places, 1.0, pieces.address, tensors, stream), repeats
    )
    gathered = seconds(
        device, stream, lambda: device.gather(pieces.address, tensors, *places, flag.address, stream), repeats
    )
    row: dict[str, float | str] = {
        "bucket": f"{tensors} tensors of {elements}",
        "copy_gbps": 8 * n / copied / 1e9,
    }
    for op, taken in (("gather", gathered), ("scatter", scattered)):
        row |= {f"{op}_gbps": moved / taken / 1e9, f"{op}_copy_ratio": moved / taken * copied / (8 * n)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, hip, ... (cuda)")
    parser.add_argument("--megabytes", type=float, default=256, help="of float32, at least (256)")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", metavar="FILE", help="write the rows there, too")
    arguments = parser.parse_args()
    try:
        rows = run_device_bench(arguments.device, megabytes=arguments.megabytes, repeats=arguments.repeats)
        small = bucket(arguments.device, 1000, 10_000, arguments.repeats)
    except GradflowError as error:
        raise SystemExit(f"bench_gpu: {error}") from error
    print(json.dumps(small, indent=1))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"codecs": rows, "bucket": small}, file, indent=1)


if __name__ == "__main__":
    main()
