"""One way to fail, named on the command line; the last rank is the one at fault."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time

import numpy as np
from mpi4py import MPI

from hvd_gradflow.codec import get
from hvd_gradflow.codec.uniform import Int8
from hvd_gradflow.control.guard import AccuracyGuard
from hvd_gradflow.errors import GradflowError
from hvd_gradflow.reduce import Reducer, TensorSpec, default_reducer
from hvd_gradflow.reduce.layout import digest

comm = MPI.COMM_WORLD
case = sys.argv[1]
if os.environ.get("GRADFLOW_DEVICE") == "emulated":
    import emulated_gpu  # noqa: F401
rank = comm.rank
culprit = rank == comm.size - 1
ones = np.ones(1000, np.float32)


def expect(call) -> None:
    """Print the error that a call ends in, and leave by it."""
    try:
        call()
    except GradflowError as error:
        print(f"RANK {rank} {type(error).__name__}: {error}", flush=True)
        raise
    print(f"RANK {rank} no error", flush=True)


if case == "configuration":
    os.environ["GRADFLOW_WINDOW"] = "3" if culprit else "4"
    expect(Reducer)
reducer = Reducer(comm)
reducer.allreduce(ones, "first", codec="int8")
if case == "elements":
    expect(lambda: reducer.allreduce(np.ones(18 if culprit else 17, np.float32), "fc1.weight"))
elif case == "codec":
    expect(lambda: reducer.allreduce(ones, "w", codec="int4" if culprit else "int8"))
elif case == "op":
    expect(lambda: reducer.allreduce(ones, "w", op="sum" if culprit else "average"))
elif case == "plan":
    shapes = {"a": (5000,), "b": (2000, 2) if culprit else (4000,)}
    stream = reducer.stream([TensorSpec(n, s) for n, s in shapes.items()], "int8")
    handles = [stream.submit(n, np.ones(s, np.float32)) for n, s in shapes.items()]
    expect(lambda: [h.wait() for h in handles])
elif case.startswith("moments"):
    # Of optimizers that are not alike: from the start, on the culprit only, or from the second step on.
    steps = iter([None, *[np.full(5000, 1.0 + culprit)] * 9])
    provided = {
        "moments": lambda name: np.full(5000, 1.0 + culprit),
        "moments of one": lambda name: np.ones(5000) if culprit else None,
        "moments later": lambda name: next(steps),
    }[case]
    codec = get("deadzone", domain="normalized")
    stream = reducer.stream([TensorSpec("w", (5000,))], codec, second_moment=provided)
    if case == "moments later":
        stream.submit("w", np.ones(5000, np.float32)).wait()
    expect(lambda: stream.submit("w", np.ones(5000, np.float32)).wait())
elif case == "staleness":
    stream = reducer.stream([TensorSpec("w", (5000,))], "int8", max_staleness=2 if culprit else 1)
    expect(lambda: stream.submit("w", np.ones(5000, np.float32)).wait())
elif case == "clipping":
    alike = {"clip_grad_norm": 1.0 if culprit else None}
    stream = reducer.stream([TensorSpec("w", (5000,))], "int8", alike=alike)
    expect(lambda: stream.submit("w", np.ones(5000, np.float32)).wait())
elif case == "in place":
    stream = reducer.stream([TensorSpec("w", (5000,))], "int8", in_place=culprit)
    expect(lambda: stream.submit("w", np.ones(5000, np.float32)).wait())
elif case == "guards":
    guard = AccuracyGuard(get("deadzone", step=2.0 if culprit else 1.0), window=10 if culprit else 20)
    expect(lambda: reducer.stream([TensorSpec("w", (5000,))], guard))
elif case.startswith("versions"):
    # Four versions, of which three are queued while the culprit, which is stopped, announces none.
    stream = reducer.stream([TensorSpec("w", (5000,))], "int8", max_staleness=3)
    if culprit and case == "versions":
        os.kill(os.getpid(), signal.SIGSTOP)
    handles = []
    for _ in range(4):
        handles.append(stream.submit("w", np.ones(5000, np.float32)))
        stream.advance()
    if case == "versions closed":  # under way at the end: not an error, nobody asks for the results
        print(f"RANK {rank} fine", flush=True)
    else:
        for handle in handles:
            try:
                handle.wait()
            except GradflowError as error:
                print(f"RANK {rank} {type(error).__name__}: {error}", flush=True)
        raise SystemExit(0)  # and yet not exit code 0
elif case == "missing":
    if culprit:
        time.sleep(30)
    expect(lambda: reducer.allreduce(ones, "w"))
elif case == "late and stopped":
    # The others still compute the gradient when the culprit stops: they need not have submitted to be told.
    if culprit:
        os.kill(os.getpid(), signal.SIGSTOP)
    place = reducer.place_of(ones)
    place.device.delay(20, place.input)
    expect(lambda: reducer.allreduce(ones, "w", codec="int8", out=ones))
elif case == "late":
    # The culprit's gradient is still being computed on its device when the others have waited long enough.
    if culprit:
        place = reducer.place_of(ones)
        place.device.delay(8, place.input)
    expect(lambda: reducer.allreduce(ones, "w", codec="int8", out=ones))
elif case == "twice":
    first = reducer.allreduce_async(ones, "w")
    try:
        reducer.allreduce_async(ones, "w") if not first.done() else None
    except GradflowError as error:
        print(f"RANK {rank} {type(error).__name__}: {error}", flush=True)
    first.wait()
elif case == "leaves":
    if not culprit:
        expect(lambda: reducer.allreduce(ones, "w"))
elif case == "raises":
    if culprit:
        raise RuntimeError("out of cheese")
    expect(lambda: reducer.allreduce(ones, "w"))
elif case in ("exit0", "kill", "stop"):
    big = np.ones(8_000_000 if reducer.config.device == "auto" else 500_000, np.float32)
    for step in range(1000):
        if culprit and step == 3:
            handle = reducer.allreduce_async(big, "w", codec="int8")
            if case == "exit0":
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL if case == "kill" else signal.SIGSTOP)
        expect_error = step >= 3
        try:
            reducer.allreduce(big, "w", codec="int8")
        except GradflowError as error:
            print(f"RANK {rank} {type(error).__name__}: {error}", flush=True)
            raise
elif case == "sysexit":
    if culprit:
        sys.exit(3)
    expect(lambda: reducer.allreduce(ones, "w"))
elif case == "caught":
    # A program that catches the error and ends in peace: still not exit code 0.
    try:
        reducer.allreduce(np.ones(18 if culprit else 17, np.float32), "w")
    except GradflowError:
        print("caught", flush=True)
elif case == "join":
    if not culprit:
        expect(lambda: reducer.join())
elif case == "join-living":
    if culprit:
        time.sleep(30)
    expect(lambda: reducer.join())
elif case == "set":
    if not culprit:
        expect(lambda: default_reducer([0, comm.size - 1]) if rank == 0 else time.sleep(6))
    time.sleep(30)
elif case == "finalize":
    handle = reducer.allreduce_async(ones, "w") if not culprit else None
    MPI.Finalize()
    if handle is not None:
        expect(handle.wait)
elif case == "fork":
    child = os.fork()
    if child == 0:
        try:
            reducer.allreduce(ones, "w")
        except GradflowError as error:
            print(f"CHILD {error}", flush=True)
        atexit._run_exitfuncs()  # ours must neither wait nor abort the job
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    reducer.allreduce(ones, "w")
    print(f"RANK {rank} fine", flush=True)
elif case == "busy":
    # Rank 0 keeps the interpreter lock while the engine has a warning to give.
    if rank == 0:
        ctypes.PyDLL(None).usleep(5_000_000)
    reducer.allreduce(ones, "w")
    print(f"RANK {rank} fine", flush=True)
elif case == "fine":
    reducer.close()
    print(f"RANK {rank} fine", flush=True)
elif case == "unattended":
    # Nobody waits for what is under way at the end, and the culprit is slow to decode it. Whoever leaves
    # takes Horovod's MPI along, so nobody may while that goes on.
    Int8.decode, decode = lambda *args: (time.sleep(1.0 if culprit else 0.0), decode(*args))[1], Int8.decode
    name = next(f"w{i}" for i in range(100) if digest(f"w{i}") % 4096 % comm.size == 0)  # rank 0 sums it up
    time.sleep(0.0 if culprit else 0.5)  # it has said that it closes before the others submit
    handle = reducer.allreduce_async(ones, name, codec="int8")
    closing = threading.Thread(target=reducer.close, kwargs={"quiet": True})
    closing.start()
    if culprit:
        comm.recv(source=0)
        print(f"RANK {rank} {'fine' if handle.done() else 'has work left'}", flush=True)
    closing.join()
    if rank == 0:
        comm.send(None, dest=comm.size - 1)
    comm.Barrier()
elif case == "early":
    if not culprit:
        time.sleep(2)
    print(f"RANK {rank} fine", flush=True)
