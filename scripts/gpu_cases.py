"""The cases of scripts/gpu_tests.py that are whole runs: each runs scenarios and looks at what they left."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCENARIOS = ROOT / "scenarios"
SKIPPED = 77
RUN_TIMEOUT_S = 150


class Failed(Exception):
    """A case that did not go as it must."""


class Skipped(Exception):
    """A case that this machine cannot run."""


@dataclass
class Run:
    """One `engram-bench run` and what it left."""

    code: int
    error: str
    folder: Path
    result: dict[str, Any] = field(default_factory=dict)

    def sums(self, which: str) -> list[Any]:
        return [[slot["when"], slot["arm"], slot[which]] for slot in self.result["checks"]["slots"]]

    def warnings(self) -> set[str]:
        return {warning["code"] for warning in self.result["warnings"]}


class Bench:
    def __init__(self, build: Path, scratch: Path) -> None:
        self.program = build / "engram-bench"
        self.scratch = scratch
        self.count = 0

    def run(
        self,
        scenario: str,
        *settings: str,
        environment: dict[str, str] | None = None,
        options: tuple[str, ...] = (),
    ) -> Run:
        self.count += 1
        folder = self.scratch / f"run-{self.count}"
        command = [str(self.program), "run", str(SCENARIOS / f"{scenario}.json"), "-o", str(folder), "-q", *options]
        for setting in settings:
            command += ["--set", setting]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, env={**os.environ, **(environment or {})}
        )
        run = Run(done.returncode, done.stderr.strip(), folder)
        if (folder / "result.json").exists():
            run.result = json.loads((folder / "result.json").read_text())
        return run

    def good(self, scenario: str, *settings: str, options: tuple[str, ...] = ()) -> Run:
        run = self.run(scenario, *settings, options=options)
        if run.code == SKIPPED:
            raise Skipped(run.error)
        if run.code == 1 and ("not enough memory" in run.error or "out of memory" in run.error):
            raise Skipped(run.error)
        require(run.code == 0, f"exit {run.code}: {run.error}")
        require(run.result["checks"]["passed"] is True, "the checks did not pass")
        return run


def require(condition: bool, text: str) -> None:
    if not condition:
        raise Failed(text)


def settings_for(backend: str, *more: str) -> list[str]:
    # No warm-up: its length depends on the machine, and so would the steps that follow.
    return [f"device.backend={backend}", "workload.warmup=0", *more]


def equal_to_cpu(bench: Bench, scenario: str, *more: str) -> None:
    """The same ids and rows as on the CPU, in every checked slot."""
    cuda = bench.good(scenario, *settings_for("cuda", *more))
    cpu = bench.good(scenario, *settings_for("cpu", *more))
    require(cuda.sums("rows_sha256") == cpu.sums("rows_sha256"), "the rows' digests differ from the CPU's")
    require(any(any(one[2]) for one in cuda.sums("rows_sha256")), "no slot has a digest")
    devices = cuda.result["effective"][0]["devices"]
    require(bool(devices) and devices[0]["backend"] == "cuda", "the result names no CUDA device")
    require(devices[0]["uuid"] is not None, "the device has no UUID")
    uuids = {one["uuid"] for one in devices}
    if len(uuids) < len(devices):
        require(all(one["time_sliced"] for one in devices), "shared devices are not said to be")
        require("time_sliced" in cuda.warnings(), "ranks share a device and no warning says so")
        # With more devices than one, NCCL serves the groups whose members lie on different ones.
        require(len(uuids) > 1 or all(one["host_staged"] for one in devices), "one device, and not host_staged")
    for arm in cuda.result["arms"]:
        for rank in arm["work_per_rank"]:
            for lookup in rank["lookups"]:
                require(lookup.get("registers_per_thread_max", 0) > 0, "a lookup without its kernel's registers")
                units = lookup["distinct_units_seen"]
                require(isinstance(units, int) and 0 < units <= lookup["grid_max"], f"a lookup's SMs: {units}")


def graphs_equal_off(bench: Bench, scenario: str, *more: str) -> None:
    """prefetch.graph piecewise: rows and hidden states bit for bit, after many replays with fresh ids."""
    settings = settings_for("cuda", "workload.steps=9", "experiment.blocks=2", *more)
    off = bench.good(scenario, *settings)
    pieces = bench.good(scenario, *settings, "prefetch.graph=piecewise")
    for which in ("rows_sha256", "hidden_sha256"):
        require(off.sums(which) == pieces.sums(which), f"{which} with graphs differ")
    require(len({str(one[2]) for one in off.sums("hidden_sha256")}) > 1, "all checked steps had the same ids")

    def launches(run: Run) -> float:
        return float(run.result["arms"][0]["work_per_rank"][0]["host"]["launches_per_step"])

    require(launches(pieces) < launches(off), f"graphs took {launches(pieces)} launches, without {launches(off)}")


def wrong_rows_are_found(bench: Bench, kind: str, *more: str) -> None:
    run = bench.run("tiny", *settings_for("cuda", f"fault.kind={kind}", "fault.stage=in_step", "fault.step=2", *more))
    require(run.code == 5, f"exit {run.code}, not 5: {run.error}")
    require(run.result["cells"] == [], "a run with wrong rows shows figures")


def rank_map(bench: Bench) -> None:
    bench.good("tiny", *settings_for("cuda", "device.rank_map=[0,0,0,0]"))
    run = bench.run("tiny", *settings_for("cuda", "device.rank_map=[0,0,0,900]"))
    require(run.code == SKIPPED, f"exit {run.code} for a device that is not there: {run.error}")
    require("900" in run.error, run.error)


def no_device(bench: Bench) -> None:
    run = bench.run("tiny", *settings_for("cuda"), environment={"CUDA_VISIBLE_DEVICES": ""})
    require(run.code == SKIPPED, f"exit {run.code}: {run.error}")
    require("device" in run.error, run.error)
    automatic = bench.run("tiny", *settings_for("auto"), environment={"CUDA_VISIBLE_DEVICES": ""})
    require(automatic.code == 0, f"auto without a device: exit {automatic.code}: {automatic.error}")
    require(automatic.result["effective"][0]["device_backend"] == "cpu", "auto without a device is not the CPU")


SINGLE = ("parallel.tp=1", "parallel.dp=1", "parallel.table_mode=private", "storage.policy=none")
SMALL = (
    *SINGLE, "model.table_scale=0.001", "model.hidden_size=512", "model.backbone.scale=0.002", "workload.steps=6",
    "experiment.blocks=2",
)  # fmt: skip


def automatic_is_cuda(bench: Bench) -> None:
    run = bench.good("tiny", *settings_for("auto"))
    require(run.result["effective"][0]["device_backend"] == "cuda", "auto with a device is not CUDA")


def bounds(bench: Bench) -> None:
    """B1 small, with both controls: the tables in device memory give the same rows."""
    run = bench.good("h200-b1", *settings_for("cuda", *SMALL))
    sums = {}
    for when, arm, value in run.sums("rows_sha256"):
        if when == "before_timing":
            sums[arm] = value
    require(sums["early"] == sums["hbm"] == sums["at_consume"], "device memory gave other rows")
    require("time_sliced" not in run.warnings(), "one rank alone is called time-sliced")
    states = run.result["conditions"]["state_before"]["devices"]
    if isinstance(states, list):
        require(states[0]["temperature_c"] is not None, "NVML gave a device without a temperature field")
        require(isinstance(run.result["conditions"]["gates"], list), "NVML is there and no gate was read")


def memory_of_the_driver(bench: Bench, mode: str, policy: str = "bind:0") -> None:
    """cuda-host-numa: the CPU's rows, pages on the node asked for, allocations on record."""
    settings = settings_for(
        "cuda", "storage.backing=cuda-host-numa", f"storage.policy={policy}", f"parallel.table_mode={mode}"
    )
    cuda = bench.good("tiny", *settings)
    cpu = bench.good("tiny", *settings_for("cpu", f"parallel.table_mode={mode}"))
    require(cuda.sums("rows_sha256") == cpu.sums("rows_sha256"), "the rows' digests differ from the CPU's")
    for backing in cuda.result["effective"][0]["backings"]:
        identity = backing["identity"]
        require(identity["kind"] == "cuda-host-numa", f"the backing is {identity}")
        require({piece["node"] for piece in identity["pieces"]} == {0}, f"pieces are {identity['pieces']}")
    snapshot = json.loads((cuda.folder / "placement/reroll-0/steady-rank-0.json").read_text())
    lines = " ".join(snapshot["mapping"]["raw_numa_maps"])
    require("/dev/nvidia" in lines, f"numa_maps shows no driver mapping: {lines[:200]}")
    require(set(snapshot["mapping"]["node_pages"]) == {"0"}, f"pages by node: {snapshot['mapping']['node_pages']}")


def no_such_node(bench: Bench) -> None:
    run = bench.run("tiny", *settings_for("cuda", "storage.backing=cuda-host-numa", "storage.policy=bind:63"))
    require(run.code == SKIPPED, f"exit {run.code} for a NUMA node that is not there: {run.error}")


def traced(bench: Bench, *more: str) -> None:
    """--trace: spans of real kernels inside their operations' events, on one clock; no verdict."""
    settings = settings_for("cuda", *SINGLE, "workload.steps=5", *more)
    run = bench.good("private", *settings, options=("--trace",))
    require(run.result["evidence"]["conditions"]["traced"] is True, "the run is not marked as traced")
    traces = sorted((run.folder / "trace").glob("*-rank-0.json"))
    require(bool(traces), "no trace was kept")
    slot = json.loads(traces[0].read_text())["slots"][0]
    if slot["reason"] is not None:
        raise Skipped(slot["reason"])
    rows = [dict(zip(slot["columns"], span, strict=True)) for span in slot["spans"]]
    require(slot["dropped"] == 0, f"{slot['dropped']} records were lost")
    lookups = [row for row in rows if row["op"] == "lookup" and row["blocks"] > 0]
    layers = {lookup["layer"] for lookup in lookups}
    expected = slot["steps"] * len(layers)
    require(bool(layers) and len(lookups) == expected, f"{len(lookups)} lookups in {slot['steps']} steps")
    require(all("lookup" in slot["names"][row["name"]] for row in lookups), "a lookup's kernel has another name")
    require(all(row["end_ns"] > row["start_ns"] for row in lookups), "a span without length")
    kinds = {one["name"]: one["kind"] for one in run.result["event_kinds"]}
    events = read_events(run.folder / "events/rank-0.npy", slot["slot"])
    bound = slot["clock_error_ns"] + run.result["effective"][0]["devices"][0]["clock_error_ns"] + 5_000
    for which in ("lookup_start", "lookup_done"):
        found = sorted(time for kind, time in events if kind == kinds[which])
        require(len(found) == len(lookups), f"{len(found)} events {which} for {len(lookups)} kernels")
        for time_ns, row in zip(found, sorted(lookups, key=lambda row: row["start_ns"]), strict=True):
            inside = time_ns - bound <= row["start_ns"] if which == "lookup_start" else row["end_ns"] <= time_ns + bound
            require(inside, f"{which} at {time_ns}, its kernel {row['start_ns']} to {row['end_ns']}, bound {bound}")
    plain = bench.good("private", *settings)
    require(run.sums("rows_sha256") == plain.sums("rows_sha256"), "a traced run has other rows")


def nvtx_ranges(bench: Bench) -> None:
    """What a profiler sees: ranges of the observed pass alone, each closed, in the domain and by category."""
    recorder = bench.program.parent / "tests" / "gpu" / "libnvtx_recorder.so"
    if not recorder.exists():
        raise Skipped(f"{recorder} was not built")
    seen: dict[bool, list[list[str]]] = {}
    for observed in (True, False):
        record = bench.scratch / f"nvtx-{observed}"
        run = bench.run(
            "private",
            *settings_for("cuda", *SINGLE, f"experiment.observed_pass={str(observed).lower()}"),
            environment={"NVTX_INJECTION64_PATH": str(recorder), "ENGRAM_BENCH_NVTX_RECORD": str(record)},
        )
        require(run.code == 0, f"exit {run.code}: {run.error}")
        files = bench.scratch.glob(f"{record.name}.*")
        seen[observed] = [line.split(maxsplit=3) for file in files for line in file.read_text().splitlines()]
    require(seen[False] == [], "NVTX was called in a run without an observed pass")
    lines = seen[True]
    require(["domain", "1", "engram-bench"] in lines, "no domain engram-bench")
    categories = {line[2]: line[3] for line in lines if line[0] == "category"}
    pushed = [categories.get(line[2], "?") for line in lines if line[0] == "push"]
    require(len(pushed) == sum(line[0] == "pop" for line in lines), "ranges stay open")
    steps = json.loads((SCENARIOS / "private.json").read_text())["workload"]["steps"]
    arms = len(run.result["arms"])
    layers = len(run.result["arms"][0]["work_per_rank"][0]["lookups"])
    for kind, count in (("lookup", steps * layers * arms), ("gate", steps * layers * arms), ("hash", steps * arms)):
        require(pushed.count(kind) == count, f"{pushed.count(kind)} ranges of {kind}, not {count}")


def read_events(path: Path, slot: int) -> list[tuple[int, int]]:
    """(kind, device time) of one slot; the file is a .npy of 24-byte records."""
    data = path.read_bytes()
    header = int.from_bytes(data[8:10], "little")
    out = []
    for at in range(10 + header, len(data), 24):
        _, which, kind, _, clock, _, _, time_ns = struct.unpack("<IHHhBBIq", data[at : at + 24])
        if which == slot and clock == 1:
            out.append((kind, time_ns))
    return out


def grid_caps(bench: Bench) -> None:
    run = bench.good("h200-b2", *settings_for("cuda", *SMALL))
    grids = {}
    for arm in run.result["arms"]:
        if arm["name"] != "no_lookup":
            grids[arm["name"]] = arm["work_per_rank"][0]["lookups"][0]["grid_max"]
    require(grids["g8"] == 8 and grids["g16"] == 16 and grids["g33"] == 33, f"grids are {grids}")
    require(grids["half"] == run.result["effective"][0]["device_units"] // 2, f"grids are {grids}")


HOG = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def check(code):
    if code: sys.exit(f"error {code}")
check(cuda.cuInit(0))
context, device = ctypes.c_void_p(), ctypes.c_int()
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
check(cuda.cuCtxSetCurrent(context))
free, total, pointer = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(free.value - (2 << 30))))
print("full", flush=True)
sys.stdin.read()
"""


def full_device(bench: Bench) -> None:
    """A device that another process has filled: a clean failure that says so."""
    hog = subprocess.Popen([sys.executable, "-c", HOG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert hog.stdout is not None
        if hog.stdout.readline().strip() != "full":
            raise Skipped("the device's memory could not be taken")
        run = bench.run("h200-b1", *settings_for("cuda", *SMALL, "model.hidden_size=5120", "model.backbone.scale=1"))
    finally:
        hog.communicate()
    require(run.code == 1, f"exit {run.code}: {run.error}")
    require("out of memory" in run.error and "rank 0" in run.error, run.error)


def observed_program(bench: Bench) -> None:
    """observe on CUDA processes of another program: their shared table, and pinned memory of the driver."""
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode != 0:
        raise Skipped("PyTorch is not installed")
    program = ROOT / "tests/python/table_process.py"
    name = f"vllm_engram_test_{os.getpid()}"
    command = [sys.executable, str(program), name, "256", "2", "--pinned", "512"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as group:
        assert group.stdin is not None
        assert group.stdout is not None
        try:
            pids = json.loads(group.stdout.readline())
            options = [text for pid in pids for text in ("--pid", str(pid))]
            seen = subprocess.run(
                [str(bench.program), "observe", "--json", *options],
                capture_output=True,
                text=True,
                timeout=RUN_TIMEOUT_S,
            )
        finally:
            group.stdin.close()
    require(seen.returncode == 0, f"exit {seen.returncode}: {seen.stderr}")
    tables = json.loads(seen.stdout)["tables"]
    shared = [table for table in tables if name in table["file"]]
    require(len(shared) == 1 and len(shared[0]["readers"]) == 2, f"tables are {[one['file'] for one in tables]}")
    require(shared[0]["bytes"] == 256 << 20, f"the shared table has {shared[0]['bytes']} bytes")
    require(shared[0]["present_bytes"] == 256 << 20, f"of it, {shared[0]['present_bytes']} bytes have pages")
    pinned = [table for table in tables if table is not shared[0] and table["bytes"] >= 512 << 20]
    require(len(pinned) == 2, f"{len(pinned)} pinned allocations, not 2: {[one['file'] for one in tables]}")
    for table in pinned:
        require(table["present_bytes"] == table["bytes"], f"{table['file']}: {table['present_bytes']} bytes have pages")
        require(len(table["readers"]) == 1, f"{table['file']} has {len(table['readers'])} readers")


def cases() -> list[tuple[str, Callable[[Bench], None]]]:
    def equal(scenario: str, *more: str) -> Callable[[Bench], None]:
        return lambda bench: equal_to_cpu(bench, scenario, *more)

    def graphs(scenario: str, *more: str) -> Callable[[Bench], None]:
        return lambda bench: graphs_equal_off(bench, scenario, *more)

    def fault(kind: str, *more: str) -> Callable[[Bench], None]:
        return lambda bench: wrong_rows_are_found(bench, kind, *more)

    late = "prefetch.submit=at_consume"
    return [
        ("run tiny, memfd", equal("tiny")),
        ("run tiny, shm", equal("tiny", "storage.backing=shm")),
        ("run tiny, stock", equal("tiny", "storage.backing=shm", "storage.policy=stock")),
        ("run tiny, at_consume", equal("tiny", late)),
        ("run private, anon", equal("private", "storage.policy=none")),
        ("run private, interleaved", equal("private", "storage.policy=none", "storage.layout=interleaved")),
        ("run dp_sharded", equal("dp_sharded")),
        ("run dp_sharded, at_consume", equal("dp_sharded", late)),
        ("run sp", equal("sp")),
        ("run ep", equal("ep")),
        ("run uneven", equal("uneven")),
        ("run quick", equal("quick", "storage.policy=none", "experiment.blocks=2")),
        ("run private, per_layer streams", equal("private", "storage.policy=none", "prefetch.streams=per_layer")),
        ("run private, order table", equal("private", "storage.policy=none", "prefetch.order=table")),
        ("run dp_sharded, order table", equal("dp_sharded", "prefetch.order=table", late)),
        ("run with the automatic backend", automatic_is_cuda),
        ("graphs, one rank", graphs("private", *SINGLE)),
        ("graphs, one rank, at_consume", graphs("private", *SINGLE, late)),
        ("graphs, shared TP2 x DP2", graphs("tiny")),
        ("graphs, dp_sharded", graphs("dp_sharded")),
        ("graphs, sp", graphs("sp")),
        ("graphs, ep", graphs("ep")),
        ("fault skip_lookup", fault("skip_lookup")),
        ("fault skip_lookup, at_consume", fault("skip_lookup", late)),
        ("fault late_lookup", fault("late_lookup")),
        ("fault late_lookup, graphs", fault("late_lookup", "prefetch.graph=piecewise")),
        ("cuda-host-numa, shared", lambda bench: memory_of_the_driver(bench, "shared")),
        ("cuda-host-numa, private", lambda bench: memory_of_the_driver(bench, "private")),
        ("cuda-host-numa, dp_sharded", lambda bench: memory_of_the_driver(bench, "dp_sharded")),
        # One node suffices to take every policy's way; what lies where on two is shown on memfds.
        ("cuda-host-numa, interleave", lambda bench: memory_of_the_driver(bench, "shared", "interleave:0")),
        ("cuda-host-numa, weighted", lambda bench: memory_of_the_driver(bench, "shared", "weighted:0=2")),
        ("cuda-host-numa, no such node", no_such_node),
        ("trace", traced),
        ("trace, graphs", lambda bench: traced(bench, "prefetch.graph=piecewise")),
        ("NVTX ranges", nvtx_ranges),
        ("observe another program", observed_program),
        ("rank_map", rank_map),
        ("no device", no_device),
        ("B1 small, hbm and stub controls", bounds),
        ("B2 small, grid caps", grid_caps),
        ("B1 small, graphs", lambda bench: graphs_equal_off(bench, "h200-b1", *SMALL)),
    ]
