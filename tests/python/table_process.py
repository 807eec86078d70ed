"""A program that maps tables as a server does: `python table_process.py NAME MIB READERS [--thp] [--cpus 0,1]
[--parts] [--pinned MIB]`.

Makes the file NAME in /dev/shm, lets READERS processes map and touch it, removes the name, prints the readers' pids as
one line of JSON, and waits until its stdin is closed. Reader i is put on the i-th CPU of --cpus; they touch one after
the other; with --parts reader i touches the i-th part alone. With --pinned each reader is a CUDA process of PyTorch: it
registers the table with the driver, as vLLM's workers do, and holds so much pinned memory of the driver's own
besides."""

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


def pin(table: mmap.mmap, mib: int) -> Any:
    import torch  # imported by readers alone: a CUDA process that forks cannot be used in its children

    address = torch.frombuffer(table, dtype=torch.uint8).data_ptr()
    error = torch.cuda.cudart().cudaHostRegister(address, len(table), 0)
    if int(error) != 0:
        raise SystemExit(f"cudaHostRegister: error {int(error)}")
    return torch.full((mib << 20,), 1, dtype=torch.uint8, pin_memory=True)


def reader(
    path: str, size: int, part: range, cpu: int | None, thp: bool, pinned: int, ready: Any, go: Any, stop: Any
) -> None:
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    descriptor = os.open(path, os.O_RDWR)
    with mmap.mmap(descriptor, size) as table:
        os.close(descriptor)
        if thp:
            table.madvise(MADV_HUGEPAGE)
        go.wait()
        for at in part:
            table[at] = 1
        memory = pin(table, pinned) if pinned else None
        ready.release()
        stop.wait()
        if memory is not None:
            os._exit(0)  # the driver still has the table: it goes with the process, not with the mapping


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("mib", type=int)
    parser.add_argument("readers", type=int)
    parser.add_argument("--thp", action="store_true")
    parser.add_argument("--cpus", default="")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--pinned", type=int, default=0, metavar="MIB")
    options = parser.parse_args()
    cpus = [int(cpu) for cpu in options.cpus.split(",")] if options.cpus else [None] * options.readers
    path, size = f"/dev/shm/{options.name}", options.mib << 20
    with open(path, "xb") as file:
        file.truncate(size)
    ready, stop = mp.Semaphore(0), mp.Event()
    go = [mp.Event() for _ in range(options.readers)]
    group = []
    for i in range(options.readers):
        share = size // options.readers
        part = range(i * share, (i + 1) * share, PAGE) if options.parts else range(0, size, PAGE)
        settings = (path, size, part, cpus[i], options.thp, options.pinned)
        group.append(mp.Process(target=reader, args=(*settings, ready, go[i], stop), daemon=True))
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
