"""Build the GPU kernels of cuda/: one shared library for each runtime, from the same sources.

`cuda` with nvcc, `hip` with hipcc, `emulated` with the host's compiler over cuda/emulator (for tests: no GPU
is needed). setup.py calls this; by hand, `python scripts/gpu_build.py emulated` builds one into build/gpu and
prints its path.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CUDA = ROOT / "cuda"

# A100, H100, B100; other GPUs of their generations run the same code, later ones the PTX of the last.
CUDA_ARCHITECTURES = ("80", "90", "100")
# MI200 (64 lanes to a warp) and, with 32, the RDNA2 that Debian's hipcc knows.
HIP_ARCHITECTURES = ("gfx90a", "gfx1030")

# The bytes must be those of the CPU: nothing is contracted into a fused multiply-add, denormals stay.
HOST_FLAGS = ("-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-pthread")
TIMEOUT = 900  # seconds for one compiler


class BuildError(Exception):
    """A compiler that is missing or refuses a file; the text says what to do."""


@dataclass(frozen=True)
class Toolchain:
    """How one of the three is built.

    Attributes
    ----------
    name : str
    compile, link : tuple of str
        Commands; sources, objects and ``-o`` follow.
    sources : tuple of Path
    environment : dict
        Variables that the commands need.
    """

    name: str
    compile: tuple[str, ...]
    link: tuple[str, ...]
    sources: tuple[Path, ...]
    environment: tuple[tuple[str, str], ...] = ()


def kernels(runtime: bool = True) -> tuple[Path, ...]:
    """Return the .cu files; `runtime`: with the part that needs CUDA or HIP."""
    return tuple(p for p in sorted(CUDA.glob("*.cu")) if runtime or p.name != "runtime.cu")


def find(compiler: str, variable: str, *folders: str) -> str | None:
    """Return the path of a compiler: that in an environment variable, on PATH, or in one of `folders`."""
    asked = os.environ.get(variable)
    if asked:
        return shutil.which(asked)
    return shutil.which(compiler, path=os.pathsep.join([os.environ.get("PATH", ""), *folders]))


def _missing(compiler: str, variable: str, fix: str) -> str:
    asked = os.environ.get(variable)
    return f"{variable}={asked} is no program" if asked else f"no {compiler}: {fix}"


def cuda_toolchain(architectures: tuple[str, ...] | None = None) -> Toolchain:
    """nvcc, for the architectures that it knows.

    Raises
    ------
    BuildError
        If there is no nvcc.
    """
    nvcc = find("nvcc", "NVCC", "/usr/local/cuda/bin")
    if nvcc is None:
        raise BuildError(
            _missing("nvcc", "NVCC", "install the CUDA toolkit (12 or newer), or set NVCC to its nvcc")
        )
    known = _run([nvcc, "--list-gpu-code"], dict(os.environ)).split()
    wanted = architectures or CUDA_ARCHITECTURES
    chosen = [a for a in wanted if f"sm_{a}" in known]
    if not chosen:
        raise BuildError(f"{nvcc} knows {', '.join(known)}, but none of {', '.join(wanted)}: update CUDA")
    codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in chosen]
    codes.append(f"-gencode=arch=compute_{chosen[-1]},code=compute_{chosen[-1]}")
    host = ("-Xcompiler=" + ",".join(HOST_FLAGS),)
    flags = ("-std=c++17", "-O3", "--fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true", *host)
    return Toolchain("cuda", (nvcc, *flags, *codes, "-c"), (nvcc, "-shared", "-cudart=static"), kernels())


def hip_toolchain(architectures: tuple[str, ...] = HIP_ARCHITECTURES) -> Toolchain:
    """hipcc, for AMD.

    Raises
    ------
    BuildError
        If there is no hipcc.
    """
    hipcc = find("hipcc", "HIPCC", "/opt/rocm/bin")
    if hipcc is None:
        raise BuildError(
            _missing("hipcc", "HIPCC", "install hipcc, libamdhip64-dev and rocm-device-libs, or set HIPCC")
        )
    codes = [f"--offload-arch={a}" for a in architectures]
    flags = ("-std=c++17", *HOST_FLAGS, "-Wno-pass-failed", "-x", "hip")
    # Without it hipcc takes nvcc where that is installed.
    platform = (("HIP_PLATFORM", "amd"),)
    return Toolchain("hip", (hipcc, *flags, *codes, "-c"), (hipcc, "-shared", *codes), kernels(), platform)


def emulated_toolchain(sanitizer: str = "") -> Toolchain:
    """The host's C++ compiler; `sanitizer` is empty, ``address`` or ``thread``."""
    compiler = os.environ.get("CXX", "g++")
    checks = (f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer", "-g") if sanitizer else ()
    flags = (
        "-std=c++17",
        *HOST_FLAGS,
        "-Wall",
        "-Wextra",
        "-Wno-unknown-pragmas",
        "-Werror",
        "-DGF_GPU_EMULATED",
        *checks,
    )
    sources = (*kernels(runtime=False), *sorted((CUDA / "emulator").glob("*.cpp")))
    return Toolchain(
        "emulated", (compiler, *flags, "-x", "c++", "-c"), (compiler, "-shared", "-pthread", *checks), sources
    )


def build(toolchain: Toolchain, folder: Path, jobs: int = 2) -> Path:
    """Compile and link a library, unless it is there already, made of the same.

    Parameters
    ----------
    toolchain : Toolchain
    folder : Path
        Gets ``libgradflow_NAME-DIGEST.so``.
    jobs : int
        Compilers at a time.

    Raises
    ------
    BuildError
        With the compiler's words.
    """
    target = folder / f"libgradflow_{toolchain.name}-{_digest(toolchain)}.so"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{toolchain.name}.lock", "w") as lock:  # whoever comes second finds it made
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _build(toolchain, target, jobs)
    return target


def _build(toolchain: Toolchain, target: Path, jobs: int) -> None:
    environment = {**os.environ, **dict(toolchain.environment)}
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch, ThreadPoolExecutor(jobs) as pool:

        def compiled(source: Path) -> str:
            made = str(Path(scratch) / f"{source.name}.o")
            # ThreadSanitizer must not look at the emulator's own switching of stacks.
            command = [flag for flag in toolchain.compile if not _hidden(flag, source)]
            if len(command) < len(toolchain.compile):
                command.insert(-3, "-DGF_EMULATOR_TSAN")
            _run([*command, str(source), "-o", made], environment)
            return made

        objects = list(pool.map(compiled, toolchain.sources))
        made = Path(scratch) / target.name
        _run([*toolchain.link, *objects, "-o", str(made)], environment)
        made.replace(target)


def _hidden(flag: str, source: Path) -> bool:
    return flag == "-fsanitize=thread" and source.name == "fibers.cpp"


def _digest(toolchain: Toolchain) -> str:
    """Of everything that goes into a library."""
    found = hashlib.sha256(repr((toolchain.compile, toolchain.link)).encode())
    headers = [*CUDA.rglob("*.*"), *(ROOT / "cython_ext").rglob("*.h")]
    for path in sorted({*headers, *toolchain.sources}):
        if re.fullmatch(r"\.(h|cuh|cu|cpp)", path.suffix):
            found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _run(command: list[str], environment: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


TOOLCHAINS = {"cuda": cuda_toolchain, "hip": hip_toolchain, "emulated": emulated_toolchain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=TOOLCHAINS)
    parser.add_argument("--sanitize", choices=("address", "thread"), help="of the emulated one only")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.sanitize and arguments.name != "emulated":
        parser.error("--sanitize: only the emulated library can be built so")
    try:
        made = emulated_toolchain(arguments.sanitize) if arguments.sanitize else TOOLCHAINS[arguments.name]()
        print(build(made, arguments.folder, arguments.jobs))
    except BuildError as error:
        raise SystemExit(f"gpu_build: {error}") from error


if __name__ == "__main__":
    main()
