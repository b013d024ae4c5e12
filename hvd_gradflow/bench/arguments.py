"""The command line of ``gradflow bench``: sizes, rates, lists, and the parsers of its commands."""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Mapping
from typing import Any

SIZES = "4KB,64KB,1MB,16MB,64MB,256MB"
SYSTEMS = "horovod,ddp,gradflow"
CODECS = "none,fp16,int8,int4,log4,deadzone"
TRAIN_CODECS = "none,fp16,int8,log4,deadzone,adaptive,auto"
RATE_VARIABLE = "NETLAB_RATE"
# Open MPI, PMIx, MPICH and its like, Horovod on Gloo, SLURM's own.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "HOROVOD_RANK", "SLURM_PROCID")
_PATIENCE = 5.0  # seconds; rank 0 may have started later
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_BITS = {"": 1, "BIT": 1, "KBIT": 10**3, "MBIT": 10**6, "GBIT": 10**9}


def size(text: str) -> int:
    """Return bytes: ``64MB`` is 64 * 10**6, ``64MiB`` is 64 * 2**20; a whole number of float32.

    Raises
    ------
    argparse.ArgumentTypeError
        If it is no such size.
    """
    count = _scaled(text, _BYTES, "a size such as 4KB, 64MB or 64MiB")
    if count < 4 or count % 4:
        raise argparse.ArgumentTypeError(f"{text}: expected a multiple of 4 bytes, as float32 has")
    return count


def rate(text: str) -> int:
    """Return bits a second, in the words of tc(8): ``1gbit``, ``100mbit``, or a plain number.

    Raises
    ------
    argparse.ArgumentTypeError
        If it is no such rate.
    """
    return _scaled(text, _BITS, "a rate such as 100mbit or 1gbit")


def _scaled(text: str, units: dict[str, int], expected: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if not found or found.group(2).upper() not in units:
        raise argparse.ArgumentTypeError(f"{text}: expected {expected}")
    number = round(float(found.group(1)) * units[found.group(2).upper()])
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected {expected}, above zero")
    return number


def listed(words: list[str]) -> list[str]:
    """Return the items of a list that is written with commas or spaces.

    The comma between options stays: ``log4,deadzone:step=2,offset=0.25`` are two.
    """
    items: list[str] = []
    for word in words:
        inside = False  # an item whose options may go on
        for part in filter(None, word.split(",")):
            if inside and "=" in part and ":" not in part:
                items[-1] += f",{part}"
            else:
                items.append(part)
                inside = ":" in part
    return items


def link_rate(given: int | None, environ: Mapping[str, str] | None = None) -> int | None:
    """Return the link's rate in bits a second: the one given, else NETLAB_RATE's, else None."""
    text = (os.environ if environ is None else environ).get(RATE_VARIABLE)
    return given or (rate(text) if text else None)


def launch_rank(environ: Mapping[str, str] | None = None) -> int:
    """Return this process' rank as its launcher says, before MPI runs; 0 where there is none."""
    environ = os.environ if environ is None else environ
    found = [environ[name] for name in _RANK_VARIABLES if environ.get(name, "").isdigit()]
    return int(found[0]) if found else 0


def speaks() -> bool:
    """Return whether this rank is to say what every rank has found wrong.

    The others give rank 0 time to: launchers end a job, rank 0 included, when any of its processes fails.
    """
    if launch_rank() == 0:
        return True
    time.sleep(_PATIENCE)
    return False


def add_commands(benches: Any) -> None:
    """Add the commands that compare systems between ranks to ``gradflow bench``."""
    allreduce = benches.add_parser(
        "allreduce",
        help="one tensor: Horovod, torch DDP on Gloo, ours; under mpirun or horovodrun",
    )
    allreduce.add_argument(
        "--sizes", nargs="+", default=[SIZES], metavar="SIZE", help=f"float32 bytes ({SIZES})"
    )
    _systems(allreduce, CODECS)
    allreduce.add_argument(
        "--data", default="normal", metavar="FILE", help="recorded gradients, repeated to the size (normal)"
    )
    allreduce.add_argument("--model", help="whose gradients, where the file holds those of several models")
    allreduce.add_argument(
        "--one-tensor", action="store_true", help="lay the recorded tensors end to end, as one"
    )
    allreduce.add_argument("--similarity", type=float, metavar="S", help="what deadzone keeps, as a cosine")
    _measurement(allreduce, 20.0)
    allreduce.add_argument("--plot", metavar="FILE", help="a picture of MB/s over the size (.png)")
    allreduce.set_defaults(run=_run_allreduce, check=_check_allreduce)

    train = benches.add_parser(
        "train", help="one training step: Horovod, torch DDP on Gloo, ours; under mpirun or horovodrun"
    )
    train.add_argument(
        "--model",
        choices=("mlp", "small"),
        default="mlp",
        help="67 MB in four layers (mlp), or 1,000 tensors of 1 KiB (small; by default Horovod and none)",
    )
    _systems(train, TRAIN_CODECS)
    _measurement(train, 60.0)
    train.add_argument("--plot", metavar="FILE", help="a picture of the times (.png)")
    train.set_defaults(run=_run_train, check=_check_train)

    host = benches.add_parser("host", help="what the engine costs: beside a busy thread, idle, memory")
    host.add_argument("--size", default="64MB", help="of the gradient whose memory is measured (64MB)")
    host.add_argument("--repeats", type=_count, metavar="N", help="runs of each, whatever they take")
    host.add_argument("--seconds", type=_seconds, default=10.0, help="about how long these may take (10)")
    host.add_argument(
        "--idle-seconds", type=_seconds, default=5.0, help="how long to watch an idle process (5)"
    )
    host.add_argument("--json", metavar="FILE", help="write the result as JSON too")
    host.set_defaults(run=_run_host, check=_check_host)


def _systems(parser: argparse.ArgumentParser, codecs: str) -> None:
    parser.add_argument(
        "--systems",
        nargs="+",
        metavar="SYSTEM",
        help=f"which ones ({SYSTEMS}); SYSTEM/CODEC for one of its codecs only, as in ddp/fp16",
    )
    parser.add_argument("--codecs", nargs="+", metavar="NAME", help=f"ours ({codecs}); NAME:OPTION=VALUE")


def _measurement(parser: argparse.ArgumentParser, seconds: float) -> None:
    parser.add_argument("--repeats", type=_count, metavar="N", help="runs of each, whatever they take")
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=seconds,
        help=f"about how long the runs of one case may take ({seconds:g})",
    )
    parser.add_argument(
        "--rate", type=rate, help=f"of the link, as in 1gbit; by default what {RATE_VARIABLE} says"
    )
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON too")


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected at least 1")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: expected a number of seconds above zero")
    return number


# What the command line alone tells to be wrong is told before anything is loaded or started. All ranks find
# the same, so that rank 0 says it (cli.py). Files are rank 0's to write.


def _check_allreduce(arguments: argparse.Namespace) -> None:
    from hvd_gradflow.bench.choice import chosen
    from hvd_gradflow.codec.policy import as_policy
    from hvd_gradflow.errors import ConfigError

    for text in listed(arguments.sizes):
        _checked(size, text)
    chosen(listed(arguments.systems or [SYSTEMS]), listed(arguments.codecs or [CODECS]))
    if arguments.similarity is not None:
        as_policy("deadzone", similarity=arguments.similarity)
    if arguments.data == "normal" and (arguments.model is not None or arguments.one_tensor):
        raise ConfigError(
            "--model and --one-tensor belong to recorded gradients: name their file with --data"
        )
    _check_files(arguments.json, arguments.plot)


def _check_train(arguments: argparse.Namespace) -> None:
    from hvd_gradflow.bench.choice import chosen

    chosen(_train_systems(arguments), _train_codecs(arguments))
    _check_files(arguments.json, arguments.plot)


def _check_host(arguments: argparse.Namespace) -> None:
    _checked(size, arguments.size)
    _check_files(arguments.json)


def _check_files(*paths: str | None) -> None:
    from hvd_gradflow.errors import ConfigError

    for path in filter(None, paths if launch_rank() == 0 else ()):
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise ConfigError(f"{path}: there is no directory {folder}, make it first")
        if not os.access(path if os.path.exists(path) else folder, os.W_OK) or os.path.isdir(path):
            raise ConfigError(f"{path}: cannot be written")


def _train_systems(arguments: argparse.Namespace) -> list[str]:
    return listed(arguments.systems or ["horovod/fp32,gradflow" if arguments.model == "small" else SYSTEMS])


def _train_codecs(arguments: argparse.Namespace) -> list[str]:
    return listed(arguments.codecs or ["none" if arguments.model == "small" else TRAIN_CODECS])


def _run_allreduce(arguments: argparse.Namespace) -> int:
    from hvd_gradflow.bench.allreduce import run_allreduce_bench

    run_allreduce_bench(
        sizes=[_checked(size, text) for text in listed(arguments.sizes)],
        systems=listed(arguments.systems or [SYSTEMS]),
        codecs=listed(arguments.codecs or [CODECS]),
        data=arguments.data,
        model=arguments.model,
        one_tensor=arguments.one_tensor,
        similarity=arguments.similarity,
        **_options(arguments),
    )
    return 0


def _run_train(arguments: argparse.Namespace) -> int:
    from hvd_gradflow.bench.train import run_train_bench

    run_train_bench(
        arguments.model,
        systems=_train_systems(arguments),
        codecs=_train_codecs(arguments),
        **_options(arguments),
    )
    return 0


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What comparisons between ranks have in common: how often, on what link, and which files."""
    return {
        "repeats": arguments.repeats,
        "seconds": arguments.seconds,
        "rate": _checked(link_rate, arguments.rate),
        "json_path": arguments.json,
        "plot_path": arguments.plot,
    }


def _run_host(arguments: argparse.Namespace) -> int:
    from hvd_gradflow.bench.host import run_host_bench

    run_host_bench(
        _checked(size, arguments.size),
        repeats=arguments.repeats,
        seconds=arguments.seconds,
        idle_seconds=arguments.idle_seconds,
        json_path=arguments.json,
    )
    return 0


def _checked(read: Any, value: Any) -> Any:
    from hvd_gradflow.errors import ConfigError

    try:
        return read(value)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(str(error)) from None
