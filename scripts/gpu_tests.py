"""GPU tests: kernels, the CUDA backend, and whole runs, from programs that were built here or elsewhere.

usage: scripts/test --gpu [--build DIR] [--sanitize] [--jobs N] [--only TEXT]

Needs Python's standard library alone. Without --build the program is set up and built first; with it nothing is
installed or built, and DIR needs engram-bench, libengram-bench-cuda.so and what tests/gpu makes: the *_gpu_test
programs and libnvtx_recorder.so. A machine without a GPU, or whose GPU cannot be used, exits 77 and says why.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpu_cases import ROOT, RUN_TIMEOUT_S, SCENARIOS, SKIPPED, Bench, Failed, Skipped, cases, full_device, require

SANITIZE_TIMEOUT_S = 280


@dataclass
class Outcome:
    name: str
    state: str
    text: str
    seconds: float


def gtest(program: Path, prefix: list[str], timeout: int) -> tuple[int, int, int, str]:
    """(passed, failed, skipped, output) of one GoogleTest program."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [*prefix, str(program), f"--gtest_output=json:{report}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        output = done.stdout + done.stderr
        if not report.exists():
            return 0, 1, 0, output
        passed = failed = skipped = 0
        for suite in json.loads(report.read_text())["testsuites"]:
            for case in suite["testsuite"]:
                if case.get("failures"):
                    failed += 1
                elif case.get("result") == "SKIPPED":
                    skipped += 1
                else:
                    passed += 1
        if done.returncode != 0 and failed == 0:
            failed = 1
        return passed, failed, skipped, output


def why_not(bench: Bench) -> str:
    """Why this machine cannot run GPU tests; empty: it can."""
    command = [str(bench.program), "run", str(SCENARIOS / "tiny.json"), "--set", "device.backend=cuda", "--dry-run"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    if done.returncode != 0:
        return f"{bench.program} does not start: {done.stderr.strip()}"
    stops = [one["text"] for one in json.loads(done.stdout)["would_stop_run"] if one["exit"] == SKIPPED]
    return stops[0] if stops else ""


def measured(name: str, work: Callable[[], None]) -> Outcome:
    start = time.monotonic()
    state, text = "passed", ""
    try:
        work()
    except Skipped as skip:
        state, text = "skipped", str(skip)
    except subprocess.TimeoutExpired as late:
        state, text = "failed", f"took over {late.timeout} s"
    except (Failed, KeyError, IndexError, TypeError, json.JSONDecodeError) as error:
        state, text = "failed", f"{type(error).__name__}: {error}"
    outcome = Outcome(name, state, text, time.monotonic() - start)
    print(f"{outcome.state:8}{outcome.seconds:7.1f} s  {outcome.name}  {outcome.text}".rstrip(), flush=True)
    return outcome


def sanitize(program: Path) -> list[Outcome]:
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    outcomes = []
    for check in ("memcheck", "racecheck"):

        def work(check: str = check) -> None:
            if not Path(tool).exists():
                raise Skipped("compute-sanitizer is not installed: not run")
            prefix = [tool, "--tool", check, "--error-exitcode", "9"]
            passed, failed, skipped, output = gtest(program, prefix, SANITIZE_TIMEOUT_S)
            if "Device not supported" in output:
                raise Skipped("compute-sanitizer does not support this device: not run")
            tail = " | ".join(output.strip().splitlines()[-3:])
            require(failed == 0 and passed > 0, f"{passed} passed, {failed} failed, {skipped} skipped: {tail}")
            require("ERROR SUMMARY: 0 errors" in output or "0 hazards" in output, tail)

        outcomes.append(measured(f"compute-sanitizer {check}", work))
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/test --gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="folder of the programs")
    parser.add_argument("--sanitize", action="store_true", help="also the kernel tests under compute-sanitizer")
    parser.add_argument("--jobs", type=int, default=4, help="runs at once")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    start = time.monotonic()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="engram-bench-gpu-") as scratch:
        bench = Bench(build, Path(scratch))
        reason = why_not(bench)
        if reason:
            print(f"GPU tests skipped: {reason}\n0 passed, 0 failed, 1 skipped")
            return SKIPPED
        units = [0, 0, 0]
        for name in ("kernels_gpu_test", "backend_gpu_test"):
            program = build / "tests" / "gpu" / name
            if arguments.only and arguments.only not in name:
                continue

            def work(program: Path = program) -> None:
                passed, failed, skipped, output = gtest(program, [], 200)
                units[0] += passed
                units[1] += failed
                units[2] += skipped
                lines = [line for line in output.splitlines() if "Failure" in line or "FAILED" in line]
                require(failed == 0 and passed > 0, f"{passed} passed, {failed} failed: {' | '.join(lines[:6])}")

            measured(name, work)
        chosen = [(name, work) for name, work in cases() if arguments.only in name]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            outcomes = list(pool.map(lambda case: measured(case[0], lambda: case[1](bench)), chosen))
        if not arguments.only or arguments.only in "full device":  # alone: it takes the device's memory
            outcomes.append(measured("full device", lambda: full_device(bench)))
        if arguments.sanitize:
            outcomes += sanitize(build / "tests" / "gpu" / "kernels_gpu_test")
        else:
            print("not run: compute-sanitizer (--sanitize)")
    count = {state: sum(one.state == state for one in outcomes) for state in ("passed", "failed", "skipped")}
    passed, failed, skipped = count["passed"] + units[0], count["failed"] + units[1], count["skipped"] + units[2]
    print(f"{time.monotonic() - start:.0f} s\n{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
