"""How often LDPC-Staircase blocks cannot be decoded: by peeling alone, with elimination, by an ideal code.

Works on the structure of the code alone, no byte is encoded. `python scripts/ldpc_failures.py --help`
"""

from __future__ import annotations

import argparse
import json
import math
import time

# Parity by k, in parts of it, unless asked for otherwise: about where failures go from often to hardly ever.
PARITY = {
    100: (0.15, 0.2, 0.25, 0.3, 0.35),
    256: (0.15, 0.175, 0.2, 0.225, 0.25),
    1000: (0.13, 0.14, 0.15, 0.16, 0.2),
}
PER_CODE = 250  # trials with one matrix, then the next: a transport takes another seed now and then, too


def ideal(k: int, m: int, loss: float) -> float:
    """Return how often fewer than k of k + m symbols arrive, lost with this probability each: binomial."""

    def term(lost: int) -> float:
        n = k + m
        ways = math.lgamma(n + 1) - math.lgamma(lost + 1) - math.lgamma(n - lost + 1)
        return math.exp(ways + lost * math.log(loss) + (n - lost) * math.log1p(-loss))

    return math.fsum(term(lost) for lost in range(m + 1, k + m + 1))


def measure(k: int, m: int, n1: int, loss: float, trials: int, seed: int) -> dict:
    """Return counts of trials, and of failures, over codes of many seeds."""
    from hvd_gradflow.comm.ldpc import native

    total: dict = {"trials": 0, "too_few": 0, "peeling": 0, "failed": 0, "inactive": 0}
    code = 1
    while total["trials"] < trials:
        some = min(PER_CODE, trials - total["trials"])
        counts = native().Code(k, m, n1, code).trials(round(loss * 2**32), some, seed + code * 2**32)
        total = {name: total[name] + counts[name] for name in total}
        code += 1
    return total


def rate(failed: int, trials: int) -> str:
    """Return a rate with its standard error; less than one failure counts as one."""
    if failed == 0:
        return f"< {1 / trials:.0e}"
    p = failed / trials
    return f"{p:.2g} ± {math.sqrt(p * (1 - p) / trials):.1g}" if failed < trials else "1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--k", type=int, nargs="+", default=list(PARITY), help="source symbols (default: %(default)s)"
    )
    parser.add_argument(
        "--parity", type=float, nargs="+", help="parity symbols, in parts of k (default: by k)"
    )
    parser.add_argument(
        "--n1", type=int, nargs="+", default=[7], help="equations of a source symbol (default: 7)"
    )
    parser.add_argument(
        "--loss", type=float, default=0.1, help="probability that a symbol is lost (default: 0.1)"
    )
    parser.add_argument("--trials", type=int, default=20_000, help="for each line (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of what is lost")
    parser.add_argument("--json", help="write the lines to this file, too")
    arguments = parser.parse_args()
    if not 0 < arguments.loss < 1:
        parser.error(f"--loss {arguments.loss}: expected a number between 0 and 1")
    if arguments.trials < 1:
        parser.error(f"--trials {arguments.trials}: expected at least 1")
    lines = []
    print("| k | m | parity | N1 | peeling alone | with elimination | ideal code | eliminated | trials/s |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for k in arguments.k:
        for parity in arguments.parity or PARITY.get(k, PARITY[256]):
            for n1 in arguments.n1:
                m, begun = max(1, round(parity * k)), time.perf_counter()
                found = measure(k, m, n1, arguments.loss, arguments.trials, arguments.seed)
                seconds = time.perf_counter() - begun
                bound = ideal(k, m, arguments.loss)
                trials = found["trials"]
                lines.append({"k": k, "m": m, "n1": n1, "loss": arguments.loss, "ideal": bound, **found})
                print(
                    f"| {k} | {m} | {m / k:.1%} | {n1} | {rate(found['peeling'], trials)} |"
                    f" {rate(found['failed'], trials)} | {bound:.2g} | {found['inactive'] / trials:.1f} |"
                    f" {trials / seconds:,.0f} |",
                    flush=True,
                )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(lines, file, indent=1)


if __name__ == "__main__":
    main()
