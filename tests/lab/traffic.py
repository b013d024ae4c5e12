"""Sockets to test links: `serve`, then `stream HOST SECONDS` (Mbit/s) or `echo HOST COUNT` (round trips)."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

PORT = 7777
QUIET_SECONDS = 0.7


def serve() -> None:
    """Count what TCP connections bring, and say when they end; send UDP packets back."""
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("", PORT))
    threading.Thread(target=reflect, args=(datagrams,), daemon=True).start()
    with socket.create_server(("", PORT)) as server:
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                total, first = 0, 0.0
                while data := connection.recv(1 << 20):
                    first = first or time.perf_counter()
                    total += len(data)
                connection.sendall(json.dumps([total, time.perf_counter() - first]).encode())


def reflect(datagrams: socket.socket) -> None:
    while True:
        datagrams.sendto(*datagrams.recvfrom(2048))


def stream(host: str, seconds: float) -> None:
    """Print what arrived there, in Mbit/s, as its receiver measured it."""
    with socket.create_connection((host, PORT), timeout=10) as connection:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            connection.sendall(bytes(1 << 16))
        connection.shutdown(socket.SHUT_WR)
        total, took = json.loads(connection.recv(1000))
    print(total * 8 / took / 1e6)


def echo(host: str, count: int) -> None:
    """Send a packet every other millisecond; print the seconds of each that came back, as JSON."""
    sent, times = {}, []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.connect((host, PORT))
        end = 0.0
        while len(sent) < count or time.perf_counter() < end:
            if len(sent) < count:
                key = len(sent).to_bytes(4, "big")
                sent[key] = time.perf_counter()
                datagrams.send(key)
                end = time.perf_counter() + QUIET_SECONDS
            datagrams.settimeout(0.002 if len(sent) < count else QUIET_SECONDS)
            try:
                arrived = datagrams.recv(2048)
                times.append(time.perf_counter() - sent[arrived])
            except OSError:
                continue
            if len(times) == count:
                break
    print(json.dumps(times))


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[0] == "serve":
        serve()
    else:
        {"stream": stream, "echo": echo}[words[0]](
            words[1], float(words[2]) if words[0] == "stream" else int(words[2])
        )
