"""A TCP connection beside ours: `tcp.py serve`, then `tcp.py send HOST CONTROL BEGIN END`.

It sends from BEGIN to END of the monotonic clock, with that congestion control. The server prints, as JSON,
how many bytes had come when: [[time, bytes], ...], and ends.
"""

from __future__ import annotations

import json
import socket
import sys
import time

PORT = 7788
LOG_SECONDS = 0.02


def serve() -> None:
    """Count what one connection brings."""
    with socket.create_server(("", PORT)) as server:
        print("ready", flush=True)
        connection, _ = server.accept()
        with connection:
            log, total = [(time.monotonic(), 0)], 0
            while data := connection.recv(1 << 18):
                total += len(data)
                now = time.monotonic()
                if now > log[-1][0] + LOG_SECONDS:
                    log.append((now, total))
    print(json.dumps(log), flush=True)


def send(host: str, control: str, begin: float, end: float) -> None:
    """Send zeros for a while."""
    piece = bytes(1 << 16)
    with socket.socket() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        connection.connect((host, PORT))
        time.sleep(max(begin - time.monotonic(), 0))
        while time.monotonic() < end:
            connection.sendall(piece)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        send(sys.argv[2], sys.argv[3], float(sys.argv[4]), float(sys.argv[5]))
