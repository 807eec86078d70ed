"""Faults: whatever dies, hangs or runs out, the run names it, ends with its exit code and leaves nothing behind: no
process, no shared memory, no result that claims to be complete."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENGRAM_BENCH_BIN", str(ROOT / "build" / "engram-bench"))
SHM = Path("/dev/shm")

TINY: dict[str, Any] = {
    "name": "faults",
    "question": "What is left when something dies?",
    "model": {
        "preset": "tiny",
        "backbone": {"layers": 2, "weight_bytes_per_layer": 8192, "flops_per_token_per_layer": 16384},
    },
    "parallel": {"tp": 2, "dp": 2, "table_mode": "shared"},
    "device": {"backend": "cpu"},
    "storage": {"backing": "shm", "policy": "none"},
    "workload": {"kind": "steps", "batches": [{"prefill": [8], "decode": 2}], "steps": 8},
}
STOCK = ("storage.policy=stock", "storage.pretouch=none")
STAGES = ("before_map", "before_register", "during_load", "in_step")


class Bench:
    """Runs the tiny scenario; its processes carry a mark in their environment by which they are found again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"ENGRAM_BENCH_TEST={uuid.uuid4()}"
        self.scenario = folder / "scenario.json"
        self.scenario.write_text(json.dumps(TINY))
        self.output = folder / "out"

    def command(self, *settings: str, options: tuple[str, ...] = ()) -> list[str]:
        words = [BINARY, "run", str(self.scenario), "-o", str(self.output), "--no-progress", *options]
        for setting in settings:
            words += ["--set", setting]
        return words

    def environment(self) -> dict[str, str]:
        key, value = self.mark.split("=")
        return {**os.environ, key: value}

    def start(self, *settings: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*settings, options=options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(),
        )

    def run(self, *settings: str, code: int, options: tuple[str, ...] = (), before: tuple[str, ...] = ()) -> str:
        done = subprocess.run(
            [*before, *self.command(*settings, options=options)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self.environment(),
        )
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stderr

    def processes(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # gone, or another user's
        return found

    def check_nothing_left(self) -> None:
        # Ranks end by a signal of the kernel when their supervisor is killed: at once, but not before it.
        end = time.monotonic() + 10
        while self.processes() and time.monotonic() < end:
            time.sleep(0.02)
        assert self.processes() == []
        result = self.output / "result.json"
        if result.exists():
            assert json.loads(result.read_text())["complete"] is False


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for pid in bench.processes():  # a failed test leaves nothing either
        os.kill(pid, signal.SIGKILL)


def stock_names() -> list[str]:
    return [path.name for path in SHM.glob("engram_bench_*")]


def clean_stock_names(bench: Bench) -> None:
    """The next start removes the names whose owner is gone."""
    shutil.rmtree(bench.output, ignore_errors=True)
    bench.run(code=0)
    assert stock_names() == []


# Rank 0 is the leader of a backing, rank 2 its peer; only leaders load.
STRUCK = [(stage, rank) for stage in STAGES for rank in (0, 2) if (stage, rank) != ("during_load", 2)]


@pytest.mark.parametrize("policy", ["none", "stock"])
@pytest.mark.parametrize(("stage", "rank"), STRUCK)
def test_killed_rank_is_named(bench: Bench, policy: str, stage: str, rank: int) -> None:
    settings = STOCK if policy == "stock" else ()
    error = bench.run(*settings, "fault.kind=kill", f"fault.stage={stage}", f"fault.rank={rank}", code=1)
    assert f"rank {rank} (dp {rank // 2}, tp 0): " in error
    assert "killed by signal 9" in error
    bench.check_nothing_left()
    assert stock_names() == []


@pytest.mark.parametrize("policy", ["none", "stock"])
@pytest.mark.parametrize("stage", STAGES)
def test_killed_supervisor_takes_everything_with_it(bench: Bench, policy: str, stage: str) -> None:
    settings = STOCK if policy == "stock" else ()
    bench.run(*settings, "fault.kind=kill", f"fault.stage={stage}", "fault.rank=-1", code=-signal.SIGKILL)
    bench.check_nothing_left()
    if policy == "stock":
        clean_stock_names(bench)
    assert stock_names() == []


def test_killed_supervisor_takes_a_hanging_rank_with_it(bench: Bench) -> None:
    """A rank that does not look at its socket any more: only the kernel's signal at its parent's death ends it."""
    started = bench.start("fault.kind=hang", "fault.stage=in_step", "fault.rank=0")
    end = time.monotonic() + 20
    while len(bench.processes()) < 5 and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.5)
    started.kill()
    started.communicate(timeout=20)
    bench.check_nothing_left()


@pytest.mark.parametrize("stage", STAGES)
def test_hanging_rank_is_named(bench: Bench, stage: str) -> None:
    begin = time.monotonic()
    error = bench.run(
        "fault.kind=hang", f"fault.stage={stage}", "fault.rank=1", code=1, options=("--rank-timeout", "3")
    )
    assert "rank 1 (dp 0, tp 1): " in error
    assert "no progress for 3000 ms" in error
    for other in (0, 2, 3):
        assert f"rank {other} (dp" not in error
    assert time.monotonic() - begin < 40
    bench.check_nothing_left()


@pytest.mark.parametrize("stage", ["before_map", "before_register", "during_load"])
def test_failing_rank_says_why(bench: Bench, stage: str) -> None:
    error = bench.run("fault.kind=fail", f"fault.stage={stage}", "fault.rank=1", code=1)
    name = {"before_map": "map", "before_register": "register", "during_load": "load"}[stage]
    assert f"rank 1 (dp 0, tp 1): {name}: planted fault" in error
    bench.check_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_interrupts_a_run(bench: Bench, number: signal.Signals) -> None:
    # A rank that hangs keeps the run alive until the signal comes.
    started = bench.start("fault.kind=hang", "fault.stage=in_step", "fault.rank=0")
    end = time.monotonic() + 20
    while len(bench.processes()) < 5 and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.5)
    started.send_signal(number)
    _, error = started.communicate(timeout=20)
    assert started.returncode == 130, error
    assert number.name in error
    bench.check_nothing_left()
    assert json.loads((bench.output / "result.json").read_text())["complete"] is False


def test_signal_of_the_terminal_reaches_the_ranks_too_and_is_still_an_interruption(bench: Bench) -> None:
    started = subprocess.Popen(
        bench.command("fault.kind=hang", "fault.stage=in_step", "fault.rank=0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=bench.environment(),
        start_new_session=True,
    )
    end = time.monotonic() + 20
    while len(bench.processes()) < 5 and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.5)
    os.killpg(started.pid, signal.SIGINT)
    _, error = started.communicate(timeout=20)
    assert started.returncode == 130, error
    assert "killed by signal" not in error
    bench.check_nothing_left()


def test_two_runs_at_the_same_time(tmp_path: Path) -> None:
    benches = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        benches.append(Bench(tmp_path / name))
    started = [bench.start(*STOCK) for bench in benches]
    for bench, process in zip(benches, started, strict=True):
        _, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
        assert json.loads((bench.output / "result.json").read_text())["complete"] is True
        assert bench.processes() == []
    assert stock_names() == []


def test_more_memory_than_there_is_is_refused_with_the_figures(bench: Bench) -> None:
    scenario = json.loads(bench.scenario.read_text())
    scenario["model"] = {
        "preset": "deepseek-v4.1-flash",
        "table_scale": 5,
        "backbone": {"layers": 15, "weight_bytes_per_layer": 8192, "flops_per_token_per_layer": 16384},
    }
    scenario["parallel"] = {"tp": 2, "dp": 16, "table_mode": "private"}
    scenario["storage"] = {"backing": "anon", "policy": "none"}
    bench.scenario.write_text(json.dumps(scenario))
    begin = time.monotonic()
    error = bench.run(code=1)
    assert "not enough memory" in error
    assert "14.8 TiB" in error
    assert time.monotonic() - begin < 20
    assert not bench.output.exists()


def private_mounts() -> tuple[str, ...]:
    """Words before a command that runs it with mounts of its own; skips where this machine does not let us."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    words = ("unshare", "-m") if os.geteuid() == 0 else ("unshare", "-rm")
    probe = subprocess.run(
        [*words, "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip(f"no mount namespace here: {probe.stderr.strip()}")
    return words


def test_dev_shm_that_is_too_small_is_refused_before_anything_is_allocated(bench: Bench) -> None:
    words = private_mounts()
    before = (*words, "sh", "-c", 'mount -t tmpfs -o size=32k none /dev/shm && exec "$@"', "sh")
    error = bench.run(code=1, before=before)
    assert "not enough memory" in error
    assert "/dev/shm" in error
    bench.check_nothing_left()


def test_read_only_output(bench: Bench) -> None:
    words = private_mounts()
    (bench.folder / "mount").mkdir()
    bench.output = bench.folder / "mount" / "out"
    script = f'mount -t tmpfs -o ro none {bench.folder}/mount && exec "$@"'
    error = bench.run(code=1, before=(*words, "sh", "-c", script, "sh"))
    assert "Read-only file system" in error
    bench.check_nothing_left()


def test_full_disk(bench: Bench) -> None:
    words = private_mounts()
    mount = bench.folder / "mount"
    mount.mkdir()
    bench.output = mount / "out"
    # The mount ends with the command, so what it held is copied out first.
    script = (
        f"mount -t tmpfs -o size=96k none {mount} || exit 99; "
        f'"$@"; code=$?; cp -r {mount} {bench.folder}/copy; exit $code'
    )
    error = bench.run("workload.steps=512", code=1, before=(*words, "sh", "-c", script, "sh"))
    assert "No space left on device" in error
    bench.check_nothing_left()
    result = bench.folder / "copy" / "out" / "result.json"
    if result.exists():
        assert json.loads(result.read_text())["complete"] is False
