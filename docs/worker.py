#!/usr/bin/env python3
"""A worker in Python, for readers of worker-protocol.md: it runs the model `empty` on the CPU and nothing else.

The daemon starts it as `migperf-worker-torch` from the folder that MIGPERF_BIN_DIR names.
"""

import hashlib
import json
import math
import os
import resource
import signal
import socket
import statistics
import struct
import threading
import time

MESSAGE, SAMPLES = 1, 2
SAMPLES_PER_FRAME = 65_536
UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}

connection = socket.socket(fileno=os.dup(0))
stopped = threading.Event()
writing = threading.Lock()


def send_frame(kind, payload):
    with writing:
        connection.sendall(struct.pack("<IB", len(payload), kind) + payload)


def send(kind, **fields):
    send_frame(MESSAGE, json.dumps({"type": kind, **fields}).encode())


def read(count):
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def receive():
    length, kind = struct.unpack("<IB", read(5))
    if kind != MESSAGE:
        raise ValueError(f"a frame of kind {kind}")
    return json.loads(read(length))


def expect(kind):
    message = receive()
    if message.pop("type") != kind:
        raise ValueError(f"not {kind}: {message}")
    return message


def seconds(span):
    """A span as the daemon writes it: `1m30s`, `500ms`."""
    total, digits, unit = 0.0, "", ""
    for character in span + "0":
        if character.isdigit() and unit:
            total += int(digits) * UNITS[unit]
            digits, unit = "", ""
        if character.isdigit():
            digits += character
        else:
            unit += character
    return total


def batch():
    """The work of one batch; on a GPU it would end with a synchronisation of the device."""


def listen():
    """Waits for `stop`, or for the end of the connection, which ends a worker as well."""
    try:
        expect("stop")
        stopped.set()
        read(1)
    except EOFError:
        pass
    stopped.set()
    time.sleep(5)
    os.kill(os.getpid(), signal.SIGKILL)


def report(counters):
    while not stopped.wait(0.5):
        send("progress", completed=counters[0], counted=counters[1])


def main():
    born = time.monotonic_ns()
    send("hello", protocol=1, pid=os.getpid(), version="0.1.0")
    config = expect("prepare")
    workload, timing = config["workload"], config["timing"]
    if config["protocol"] != 1 or workload["model"] != "empty" or config["allocation"]["kind"] != "cpu":
        send("failed", kind="unsupported", message="this worker runs the model `empty` on the CPU, in version 1")
        return
    proof = {"devices": 0, "processors": sorted(os.sched_getaffinity(0))}
    engine = "Python's empty loop"
    send("built", proof=proof, parameters=0, engine=engine, **{"elapsed-ns": time.monotonic_ns() - born})

    expect("warm")
    times, began = [], time.monotonic()
    while len(times) < timing["warmup-batches"] or time.monotonic() - began < seconds(timing["warmup"]):
        start = time.monotonic_ns()
        batch()
        times.append(time.monotonic_ns() - start)
    typical = max(1, int(statistics.median(times[len(times) // 2 :])))
    longest = seconds(timing["settle"]) + seconds(timing["longest-window"]) + 10
    capacity = min(config["sample-capacity"], math.ceil(longest * 4e9 / typical))
    samples = bytearray(20 * capacity)
    # The message without its type is the configuration, in the order in which its digest is taken.
    digest = hashlib.sha256(json.dumps(config, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()
    send("ready", digest=digest, batches=len(times), **{"first-ns": times[0], "typical-ns": typical})

    order = expect("start")
    counters = [0, 0]
    threading.Thread(target=listen, daemon=True).start()
    reporter = threading.Thread(target=report, args=[counters])
    reporter.start()
    while time.monotonic_ns() < order["at"]:
        pass
    started, taken, lost = time.monotonic_ns(), 0, 0
    while not stopped.is_set():
        start = time.monotonic_ns()
        batch()
        end = time.monotonic_ns()
        if taken < capacity:
            struct.pack_into("<QQI", samples, 20 * taken, start, end, workload["batch-size"])
            taken += 1
        else:
            lost += 1
        counters[0] += 1
        counters[1] += start >= order["count-from"]
    reporter.join()

    for first in range(0, taken, SAMPLES_PER_FRAME):
        send_frame(SAMPLES, bytes(samples[20 * first : 20 * min(taken, first + SAMPLES_PER_FRAME)]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    send("done", samples=taken, lost=lost, started=started, **{"resident-peak": peak})
    connection.shutdown(socket.SHUT_WR)
    threading.Event().wait()  # `listen` ends this process once the daemon has closed.


if __name__ == "__main__":
    main()
