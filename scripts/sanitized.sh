#!/usr/bin/env bash
# sanitized.sh address|thread COMMAND...: run tests of the emulated GPU kernels under a sanitizer of gcc.
# Python itself is not built with one, so its runtime is loaded first, and only the kernels' memory and threads are seen.
set -euo pipefail
sanitizer=$1
shift
declare -A runtimes=([address]=libasan.so [thread]=libtsan.so)
runtime=$(gcc -print-file-name="${runtimes[$sanitizer]:?expected address or thread}")
[ -e "$runtime" ] || { echo "sanitized.sh: gcc has no ${runtimes[$sanitizer]}: install its sanitizers" >&2; exit 1; }
export GPU_SANITIZER=$sanitizer LD_PRELOAD=$runtime
# Python frees little at its end. A race or a bad access ends the run.
export ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:allocator_may_return_null=1
export TSAN_OPTIONS=halt_on_error=1:exitcode=66:allocator_may_return_null=1
exec "$@"
