"""Speed of the CUDA kernels on one GPU: against the Triton baseline, and against the device's own copy.

usage: gpu_bench.py LIBRARY [--gib 48] [--json FILE]     (LIBRARY: build/kernels/bench/libkernels_c.so)

Every ratio compares two things timed in this run, alternating. Lookups are timed as replays of a graph whose launches
each read ids of their own, all refilled between replays; the table lies in registered /dev/shm memory.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
import triton_baseline

HEADS = 24
DIM = 256
DIM_HIDDEN = 5120
TOKENS = (1, 2, 8, 32, 128, 512, 2048, 8192)
BASELINE_US = dict(zip(TOKENS, (5.78, 7.26, 14.9, 42.7, 159.0, 636.0, 2711.0, 11135.0), strict=True))
TARGET = dict(zip(TOKENS, (0.90, 0.90, 0.96, 1.00, 1.01, 1.01, 1.01, 1.01), strict=True))


class Table:
    """weights and scales as device addresses; strides in bytes."""

    def __init__(self, rows: int, weights: int, scales: int, weight_stride: int, scale_stride: int) -> None:
        self.rows, self.weights, self.scales = rows, weights, scales
        self.weight_stride, self.scale_stride = weight_stride, scale_stride


class Kernels:
    """The product's kernels through their C interface, on the current stream."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.library.eb_device_pointer.restype = ctypes.c_void_p
        self.library.eb_sort_scratch.restype = ctypes.c_size_t

    def call(self, name: str, *arguments: object) -> None:
        """Tensors go as addresses, Python integers as int64; anything else must be a ctypes value."""
        converted: list[object] = []
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                converted.append(ctypes.c_void_p(argument.data_ptr()))
            elif isinstance(argument, int):
                converted.append(ctypes.c_int64(argument))
            else:
                converted.append(argument)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        error = getattr(self.library, name)(*converted, stream)
        if error != 0:
            raise RuntimeError(f"{name}: CUDA error {error}")

    def lookup(
        self,
        table: Table,
        ids: torch.Tensor,
        out: torch.Tensor,
        cap: int,
        order: torch.Tensor | None = None,
        function: str = "eb_lookup",
    ) -> None:
        """ids is flat: every row is a token with one head."""
        weights, scales = ctypes.c_void_p(table.weights), ctypes.c_void_p(table.scales)
        strides = (table.weight_stride, table.scale_stride)
        heads = HEADS if ids.numel() % HEADS == 0 else 1
        tokens = ids.numel() // heads
        self.call(function, weights, scales, *strides, table.rows, ids, tokens, ctypes.c_int(heads), order, out, cap)

    def sort(self, table: Table, ids: torch.Tensor, order: torch.Tensor, scratch: torch.Tensor) -> None:
        size = ctypes.c_size_t(scratch.numel())
        self.call("eb_sort", table.rows, ids, ids.numel() // HEADS, ctypes.c_int(HEADS), order, scratch, size)

    def gate(self, hidden: torch.Tensor, kv: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> None:
        tokens, copies, dim = hidden.shape
        self.call("eb_gate", hidden, kv, q, k, tokens, ctypes.c_int(copies), ctypes.c_int(dim))


def host_table(kernels: Kernels, gib: float) -> tuple[mmap.mmap, int, int]:
    """A pre-touched, registered shared mapping: (mapping, device address, bytes)."""
    size = int(gib * 2**30)
    name = f"/dev/shm/engram_bench_gpu_bench_{os.getpid()}"
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(name)
    os.ftruncate(descriptor, size)
    mapping = mmap.mmap(descriptor, size)
    os.close(descriptor)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    start = time.monotonic()
    kernels.library.eb_fill(ctypes.c_void_p(address), ctypes.c_size_t(size), os.cpu_count() or 1, ctypes.c_uint64(1), 0)
    filled = time.monotonic()
    error = int(torch.cuda.cudart().cudaHostRegister(address, size, 0))
    if error != 0:
        raise RuntimeError(f"cudaHostRegister of {size} bytes: CUDA error {error}")
    device = kernels.library.eb_device_pointer(ctypes.c_void_p(address))
    print(f"table {gib} GiB: fill {filled - start:.1f} s, register {time.monotonic() - filled:.1f} s", flush=True)
    return mapping, device, size


def refill(ids: torch.Tensor, rows: int) -> None:
    ids.copy_(torch.randint(0, rows, ids.shape, device="cuda", dtype=torch.int32))


def graph_of(launches: int, launch: Callable[[int], None]) -> torch.cuda.CUDAGraph:
    launch(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            launch(i)
    return graph


def time_alternating(
    graphs: dict[str, torch.cuda.CUDAGraph], launches: int, replays: int, between: Callable[[], None]
) -> dict[str, list[float]]:
    """us a launch, one value a replay; the order of the graphs turns around from replay to replay.

    Each timed replay follows an untimed one of the same graph with other ids: the first replay after another graph
    takes up to 190 us longer, whichever comes, and small batches would show that instead of the kernel.
    """
    times: dict[str, list[float]] = {name: [] for name in graphs}
    names = list(graphs)
    for replay in range(replays + 1):
        for name in names if replay % 2 == 0 else reversed(names):
            between()
            graphs[name].replay()
            between()
            torch.cuda.synchronize()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graphs[name].replay()
            end.record()
            torch.cuda.synchronize()
            if replay > 0:
                times[name].append(start.elapsed_time(end) * 1000 / launches)
    return times


def launches_for(tokens: int) -> tuple[int, int]:
    """(launches a graph, replays)."""
    if tokens <= 32:
        return 64, 31
    if tokens <= 128:
        return 64, 15
    return (16, 9) if tokens <= 512 else (4, 7)


def triton_view(table: Table) -> tuple[triton_baseline.DevicePointer, triton_baseline.DevicePointer]:
    weights = triton_baseline.DevicePointer(table.weights, torch.float8_e4m3fn)
    return weights, triton_baseline.DevicePointer(table.scales, torch.uint8)


def check(kernels: Kernels, table: Table) -> None:
    """Ours against Triton on the same ids, bit for bit (edge ids included)."""
    ids = torch.randint(0, table.rows, (1000,), device="cuda", dtype=torch.int32)
    ids[::7] = -1
    ids[3::50] = table.rows
    ours = torch.full((1000, DIM), float("nan"), device="cuda", dtype=torch.bfloat16)
    theirs = torch.full_like(ours, float("nan"))
    kernels.lookup(table, ids, ours, 66)
    triton_baseline.lookup(ids, *triton_view(table), theirs, table.rows, 66)
    torch.cuda.synchronize()
    if not torch.equal(ours.view(torch.int16), theirs.view(torch.int16)):
        raise SystemExit("rows differ from the baseline's")


def bench_lookup(
    kernels: Kernels, table: Table, wide: Table, tokens: int, cap: int, warps: list[int]
) -> dict[str, object]:
    launches, replays = launches_for(tokens)
    rows = tokens * HEADS
    ids = torch.empty((launches, rows), device="cuda", dtype=torch.int32)
    refill(ids, min(table.rows, wide.rows))
    out = torch.empty((rows, DIM), device="cuda", dtype=torch.bfloat16)
    order = torch.empty((rows,), device="cuda", dtype=torch.int32)
    scratch_bytes = int(kernels.library.eb_sort_scratch(ctypes.c_int64(rows)))
    scratch = torch.empty((max(1, scratch_bytes),), device="cuda", dtype=torch.uint8)
    weights, scales = triton_view(table)

    def triton(num_warps: int) -> Callable[[int], None]:
        return lambda i: triton_baseline.lookup(ids[i], weights, scales, out, table.rows, cap, num_warps)

    def sorted_lookup(i: int) -> None:
        kernels.sort(table, ids[i], order, scratch)
        kernels.lookup(table, ids[i], out, cap, order)

    # Above 128 tokens the baseline's warps make no difference, and its graphs take long.
    tried = warps if tokens <= 128 else [4]
    graphs = {f"triton{w}": graph_of(launches, triton(w)) for w in tried}
    graphs["ours"] = graph_of(launches, lambda i: kernels.lookup(table, ids[i], out, cap))
    graphs["general"] = graph_of(
        launches, lambda i: kernels.lookup(table, ids[i], out, cap, function="eb_lookup_general")
    )
    graphs["interleaved"] = graph_of(launches, lambda i: kernels.lookup(wide, ids[i], out, cap))
    graphs["sort"] = graph_of(launches, lambda i: kernels.sort(table, ids[i], order, scratch))
    graphs["sorted"] = graph_of(launches, sorted_lookup)
    times = time_alternating(graphs, launches, replays, lambda: refill(ids, min(table.rows, wide.rows)))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {"tokens": tokens, "launches": launches, "replays": replays, "median_us": medians, "samples_us": times}


def bench_dense(kernels: Kernels, host_bytes: int) -> dict[str, float]:
    """Kernels bound by device memory, beside a device-to-device copy."""

    def timed(work: Callable[[], None], repeat: int = 20) -> float:
        work()
        torch.cuda.synchronize()
        samples = []
        for _ in range(repeat):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            work()
            end.record()
            torch.cuda.synchronize()
            samples.append(start.elapsed_time(end) * 1000)
        return float(statistics.median(samples))

    results: dict[str, float] = {}
    source = torch.empty(2**32, device="cuda", dtype=torch.uint8).random_()
    target = torch.empty_like(source)
    results["copy_bytes_per_s"] = 2 * source.numel() / timed(lambda: target.copy_(source)) * 1e6
    source = target = torch.empty(0)
    gib = min(48, host_bytes // 2**30)
    rows = int(gib * 2**30) // 264
    table = torch.empty(rows * 264, device="cuda", dtype=torch.uint8)
    for first in range(0, table.numel(), 2**30):
        table[first : first + 2**30].random_(0, 120)
    tokens = 8192
    launches = 16
    ids = torch.randint(0, rows, (launches, tokens * HEADS), device="cuda", dtype=torch.int32)
    out = torch.empty((tokens * HEADS, DIM), device="cuda", dtype=torch.bfloat16)
    near = Table(rows, table.data_ptr(), table.data_ptr() + rows * DIM, DIM, 8)

    def replay_us(launch: Callable[[int], None]) -> float:
        graphs = {"only": graph_of(launches, launch)}
        return float(statistics.median(time_alternating(graphs, launches, 9, lambda: refill(ids, rows))["only"]))

    moved = tokens * HEADS * (264 + 512)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    results["hbm_lookup_half_us"] = replay_us(lambda i: kernels.lookup(near, ids[i], out, sms // 2))
    results["hbm_lookup_us"] = replay_us(lambda i: kernels.lookup(near, ids[i], out, sms))
    results["hbm_lookup_bytes_per_s"] = moved / results["hbm_lookup_us"] * 1e6
    weights, scales = triton_view(near)
    results["hbm_triton_us"] = replay_us(lambda i: triton_baseline.lookup(ids[i], weights, scales, out, rows, sms))
    hidden = torch.randn((tokens, 4, 5120), device="cuda").to(torch.bfloat16)
    kv = torch.randn((tokens, 5, 5120), device="cuda").to(torch.bfloat16)
    q, k = (torch.randn((4, 5120), device="cuda").to(torch.bfloat16) for _ in range(2))
    expected = gate_reference(hidden[:64], kv[:64], q, k)
    mine = hidden[:64].clone()
    kernels.gate(mine, kv, q, k)
    torch.cuda.synchronize()
    results["gate_max_error"] = float((mine.double() - expected).abs().max() / expected.abs().max())
    gate_us = timed(lambda: kernels.gate(hidden, kv, q, k))
    results["gate_us"] = gate_us
    results["gate_bytes_per_s"] = (2 * hidden.numel() + kv.numel()) * 2 / gate_us * 1e6
    context = torch.randint(0, 99092, (tokens + 3,), device="cuda", dtype=torch.int32)
    position = torch.arange(3, tokens + 3, device="cuda", dtype=torch.int32)
    layers = np.zeros((2, 4 + 64 + 64), dtype=np.int64)
    layers[:, :4] = [
        [76632096046245, 4839876093313, 35959672319349, 73987337458391],
        [67716810739261, 51510806800915, 30921347202721, 82619226485591],
    ]
    layers[:, 4:68] = 16000057
    device_layers = torch.from_numpy(layers).cuda()
    hashed = torch.empty((tokens, 2, HEADS), device="cuda", dtype=torch.int32)
    shape = (ctypes.c_int(2), ctypes.c_int(HEADS), ctypes.c_int(8), ctypes.c_int32(2))
    results["hash_us"] = replay_us(
        lambda i: kernels.call("eb_hash", context, position, tokens, device_layers, *shape, hashed)
    )
    return results


def gate_reference(hidden: torch.Tensor, kv: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """float64, unrounded."""
    h, keys, value = hidden.double(), kv[:, :4].double(), kv[:, 4:].double()
    norm = (h.square().mean(-1) + 1e-6).rsqrt() * (keys.square().mean(-1) + 1e-6).rsqrt()
    d = (h * q.double() * k.double() * keys).sum(-1) * norm / DIM_HIDDEN**0.5
    root = d.abs().clamp(min=1e-6).sqrt()
    gate = torch.sigmoid(torch.where(d < 0, -root, root))
    return h + gate[..., None] * value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--gib", type=float, default=48)
    parser.add_argument("--cap", type=int, default=0)
    parser.add_argument("--tokens", type=lambda s: [int(x) for x in s.split(",")], default=list(TOKENS))
    parser.add_argument("--warps", type=lambda s: [int(x) for x in s.split(",")], default=[1, 2, 4, 8])
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    kernels = Kernels(arguments.library)
    cap = arguments.cap or torch.cuda.get_device_properties(0).multi_processor_count // 2
    mapping, device, size = host_table(kernels, arguments.gib)
    rows = size // 264
    split = Table(rows, device, device + rows * 256, 256, 8)
    wide = Table(size // 272, device, device + 256, 272, 272)
    check(kernels, split)
    lines = []
    results = []
    for tokens in arguments.tokens:
        result = bench_lookup(kernels, split, wide, tokens, cap, arguments.warps)
        results.append(result)
        m: dict[str, float] = result["median_us"]  # type: ignore[assignment]
        best = min(us for name, us in m.items() if name.startswith("triton"))
        lines.append(
            f"{tokens:6} "
            + " ".join(f"{name}={us:.2f}" for name, us in m.items())
            + f" | base/ref {best / BASELINE_US[tokens]:.3f} ours/triton {m['ours'] / best:.3f} (<= {TARGET[tokens]})"
            + f" split/interleaved {m['ours'] / m['interleaved']:.2f}"
            + f" (one kernel {m['general'] / m['interleaved']:.2f})"
            + f" token/table {m['ours'] / m['sorted']:.2f}"
        )
        print(lines[-1], flush=True)
    dense = bench_dense(kernels, size)
    for name, value in dense.items():
        print(f"{name} {value:.6g}")
    copy = dense["copy_bytes_per_s"]
    print(
        f"hbm lookup / copy {dense['hbm_lookup_bytes_per_s'] / copy:.3f} (>= 0.70)"
        f"  gate / copy {dense['gate_bytes_per_s'] / copy:.3f} (>= 0.80)"
    )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"lookup": results, "dense": dense}, indent=1))
    del mapping


if __name__ == "__main__":
    main()
