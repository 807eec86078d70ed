"""A program that maps tables as a server does: `python table_process.py NAME MIB READERS [--thp] [--cpus 0,1]`.

Makes the file NAME in /dev/shm, lets READERS processes map and touch it, removes the name, prints the readers' pids as
one line of JSON, and waits until its stdin is closed. Reader i is put on the i-th CPU of --cpus; they touch one after
the other."""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing as mp
import os
import sys
from typing import Any

PAGE = 4096
MADV_HUGEPAGE = 14


def reader(path: str, size: int, cpu: int | None, thp: bool, ready: Any, go: Any, stop: Any) -> None:
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    descriptor = os.open(path, os.O_RDWR)
    with mmap.mmap(descriptor, size) as table:
        os.close(descriptor)
        if thp:
            table.madvise(MADV_HUGEPAGE)
        go.wait()
        for at in range(0, size, PAGE):
            table[at] = 1
        ready.release()
        stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("mib", type=int)
    parser.add_argument("readers", type=int)
    parser.add_argument("--thp", action="store_true")
    parser.add_argument("--cpus", default="")
    options = parser.parse_args()
    cpus = [int(cpu) for cpu in options.cpus.split(",")] if options.cpus else [None] * options.readers
    path, size = f"/dev/shm/{options.name}", options.mib << 20
    with open(path, "xb") as file:
        file.truncate(size)
    ready, stop = mp.Semaphore(0), mp.Event()
    go = [mp.Event() for _ in range(options.readers)]
    group = [
        mp.Process(target=reader, args=(path, size, cpus[i], options.thp, ready, go[i], stop), daemon=True)
        for i in range(options.readers)
    ]
    try:
        for process in group:
            process.start()
        for event in go:  # one after the other: the first one's touch decides where the pages lie
            event.set()
            if not ready.acquire(timeout=120):
                raise SystemExit("a reader did not touch its table")
    finally:
        os.unlink(path)
    print(json.dumps([process.pid for process in group]), flush=True)
    sys.stdin.read()
    stop.set()
    for process in group:
        process.join(10)


if __name__ == "__main__":
    main()
