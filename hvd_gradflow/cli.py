"""The console script ``gradflow``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from hvd_gradflow import __version__
from hvd_gradflow.bench.arguments import add_commands, speaks
from hvd_gradflow.bench.tables import write_json
from hvd_gradflow.errors import ConfigError, GradflowError, unknown_name


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after the program's name; those of the process by default.

    Returns
    -------
    int
        0 if all is well, 1 if something that is needed is missing or a run failed. Arguments that make no
        sense end in ``SystemExit(2)``.
    """
    arguments = _parser().parse_args(argv)
    try:
        if hasattr(arguments, "check"):
            arguments.check(arguments)
    except GradflowError as error:
        # Every rank was given the same words.
        if speaks():
            print(f"gradflow: {error}", file=sys.stderr)
        return 1
    try:
        return arguments.run(arguments)
    except GradflowError as error:
        print(f"gradflow: {error}", file=sys.stderr)
    except OSError as error:
        print(f"gradflow: {error.filename or 'file'}: {error.strerror}", file=sys.stderr)
    except ImportError as error:
        print(f"gradflow: {error}; `gradflow check` says what is missing", file=sys.stderr)
    return 1


class _Parser(argparse.ArgumentParser):
    """Complains once, not once a rank; the parsers of commands are of this class too."""

    def error(self, message: str) -> NoReturn:
        if not speaks():
            sys.exit(2)
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("gradflow", description="Compressed gradient exchange for Horovod jobs.")
    parser.add_argument("--version", action="version", version=f"hvd_gradflow {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    check = commands.add_parser("check", help="what works here, and how to mend the rest")
    check.set_defaults(run=_check)

    bench = commands.add_parser("bench", help="measure on this machine")
    benches = bench.add_subparsers(metavar="WHAT", required=True)
    codec = benches.add_parser("codec", help="encode and decode speed, bytes and error of each codec")
    codec.add_argument("--megabytes", type=_positive, default=64, metavar="N", help="float32 to time (64)")
    codec.add_argument("--gradients", metavar="FILE", help="on recorded ones: an .npz file of float32 arrays")
    codec.add_argument("--codecs", nargs="+", metavar="NAME", help="which ones (all); NAME:OPTION=VALUE too")
    codec.add_argument("--repeats", type=_positive, metavar="N", help="runs a figure is the median of")
    codec.add_argument("--device", default="cpu", metavar="NAME", help="where: cuda, cuda:1, ... (cpu)")
    codec.set_defaults(run=_bench_codec)
    add_commands(benches)

    analyze = commands.add_parser(
        "analyze", help="what a model's gradients are like, and which codec suits them (docs/analyze.md)"
    )
    analyze.add_argument(
        "path", metavar="PATH", help="what GRADFLOW_ANALYZE=PATH recorded, or an .npz of record_gradients.py"
    )
    analyze.add_argument("--plots", metavar="DIR", help="write pictures into this directory (.png)")
    analyze.set_defaults(run=_analyze)

    for command in (check, codec, analyze):
        command.add_argument("--json", metavar="FILE", help="write the result as JSON too")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected at least 1")
    return number


def _check(arguments: argparse.Namespace) -> int:
    from hvd_gradflow import check

    found = check.findings()
    print(check.as_text(found))
    if arguments.json:
        write_json(check.as_json(found), arguments.json)
    return 0 if check.works(found) else 1


def _analyze(arguments: argparse.Namespace) -> int:
    from hvd_gradflow.analyze.report import analyze, as_text

    found = analyze(arguments.path)
    print(as_text(found))
    if arguments.json:
        write_json(found, arguments.json)
    if arguments.plots:
        from hvd_gradflow.analyze.plots import write_plots

        print("\n".join(["", *write_plots(found, arguments.plots)]))
    return 0


def _check_device(name: str) -> None:
    """Refuse a device that is not there, before anything is measured."""
    from hvd_gradflow.device import devices

    kind, known = name.partition(":")[0], devices.names()
    if kind not in known and kind not in devices.broken():
        raise unknown_name("device", name, ["cpu", *known])
    devices.available(name)


def _bench_codec(arguments: argparse.Namespace) -> int:
    options: dict[str, Any] = {"megabytes": arguments.megabytes, "codecs": arguments.codecs}
    if arguments.repeats:
        options["repeats"] = arguments.repeats
    if arguments.device != "cpu":
        if arguments.gradients:
            raise ConfigError("--gradients is measured on the CPU: leave --device out")
        _check_device(arguments.device)
        from hvd_gradflow.bench.device_codec import run_device_bench

        run_device_bench(arguments.device, json_path=arguments.json, **options)
    elif arguments.gradients:
        from hvd_gradflow.bench.gradients import run_gradient_bench

        run_gradient_bench(arguments.gradients, json_path=arguments.json, **options)
    else:
        from hvd_gradflow.bench.codec import run_codec_bench

        run_codec_bench(json_path=arguments.json, **options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
