#!/usr/bin/env bash
# Every linter of the project, each on what is tracked or new in the work tree; the exit status is 1 if any complains.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

venv=$PWD/.venv/bin
PATH=${VIRTUAL_ENV:+$VIRTUAL_ENV/bin:}$venv:$PATH
status=0

# files PATTERN... : matching files that git tracks or would add, one a line
files() { git ls-files --cached --others --exclude-standard --deduplicate -- "$@" | while read -r f; do [ ! -e "$f" ] || echo "$f"; done; }

check() {
    echo "+ $1"
    "${@:2}" || status=1
}

for tool in ruff mypy cython-lint clang-format shellcheck; do
    command -v "$tool" >/dev/null || {
        echo "lint: $tool is not on PATH: run 'make setup' (clang-format and shellcheck: install the system's packages)" >&2
        exit 127
    }
done

mapfile -t cython < <(files '*.pyx' '*.pxd')
mapfile -t cpp < <(files '*.cpp' '*.hpp' '*.h' '*.cu' '*.cuh')
mapfile -t shell < <(files '*.sh' '*.slurm' '*.sbatch' .ci/run)

check "ruff check" ruff check .
check "ruff format --check" ruff format --check .
check "mypy" mypy
[ ${#cython[@]} = 0 ] || check "cython-lint" cython-lint "${cython[@]}"
[ ${#cpp[@]} = 0 ] || check "clang-format" clang-format --dry-run --Werror "${cpp[@]}"
[ ${#shell[@]} = 0 ] || check "shellcheck" shellcheck "${shell[@]}"
exit $status
