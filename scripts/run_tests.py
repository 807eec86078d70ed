"""Runs the test suites one after the other and adds up their results from JUnit files.

Suites: unit (GoogleTest under meson), python (pytest against the built program), asan and tsan (the unit tests under
sanitizers), fuzz (each libFuzzer program for 20 s), guest (placement on emulated machines of several NUMA nodes) and
lint. A suite that cannot run on this machine is skipped by name. Without names all run but asan and tsan, whose builds
take long.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"


@dataclass
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)


def run(command: list[str], **environment: str) -> int:
    print("+", " ".join(command), flush=True)
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=False).returncode


def count_junit(path: Path) -> Count:
    """Counts test cases; a case with <failure> or <error> failed, one with <skipped> was skipped."""
    count = Count()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            count.failed += 1
            print(f"FAILED {case.get('classname', '')} {case.get('name', '')}", flush=True)
        elif case.find("skipped") is not None or case.get("status") == "notrun" or case.get("result") == "skipped":
            count.skipped += 1
        else:
            count.passed += 1
    return count


def build_all(build: Path, options: list[str], targets: tuple[str, ...] = (), **environment: str) -> bool:
    action = "configure" if (build / "build.ninja").exists() else "setup"
    configured = run(["meson", action, str(build), *options], **environment) == 0
    return configured and run(["ninja", "-C", str(build), *targets]) == 0


def meson_tests(build: Path, **environment: str) -> Count:
    junit = build / "meson-logs" / "testlog.junit.xml"
    junit.unlink(missing_ok=True)
    command = ["meson", "test", "-C", str(build), "--no-rebuild", "--print-errorlogs", "--timeout-multiplier", "4"]
    code = run(command, **environment)
    if not junit.exists():
        print(f"{build.name}: meson left no result file", flush=True)
        return Count(failed=1)
    count = count_junit(junit)
    if code != 0 and count.failed == 0:  # a test program that died outside its cases
        count.failed = 1
    return count


def unit() -> Count:
    return meson_tests(BUILD) if build_all(BUILD, ["-Dtests=enabled"]) else Count(failed=1)


def python() -> Count:
    if not build_all(BUILD, ["-Dtests=enabled"]):
        return Count(failed=1)
    junit = BUILD / "pytest.junit.xml"
    junit.unlink(missing_ok=True)
    code = run(
        [sys.executable, "-m", "pytest", "-q", "-ra", "tests/python", f"--junitxml={junit}"],
        ENGRAM_BENCH_BIN=str(BUILD / "engram-bench"),
    )
    if not junit.exists():
        return Count(failed=1)
    count = count_junit(junit)
    if code not in (0, 1):
        count.failed += 1
    return count


def sanitized(name: str, sanitizers: str, **environment: str) -> Count:
    """The unit tests, with little optimization and line numbers alone: builds in half the time."""
    build = ROOT / f"build-{name}"
    options = [f"-Db_sanitize={sanitizers}", "-Db_lundef=false", "-Dtests=enabled", "-Dcuda=disabled"]
    options += ["-Doptimization=1", "-Ddebug=false", "-Dcpp_args=-g1"]
    # Meson's own target: test programs and what they need, no benchmarks.
    built = build_all(build, options, ("meson-test-prereq",))
    return meson_tests(build, **environment) if built else Count(failed=1)


def asan() -> Count:
    return sanitized("asan", "address,undefined", UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1")


def tsan() -> Count:
    return sanitized("tsan", "thread", TSAN_OPTIONS="halt_on_error=1:die_after_fork=0")


def fuzz() -> Count:
    if shutil.which("clang++") is None:
        print("fuzz: skipped, clang++ is not installed", flush=True)
        return Count(skipped=1)
    build = ROOT / "build-fuzz"
    options = ["-Dfuzz=true", "-Dtests=disabled", "-Dcuda=disabled", "-Db_sanitize=address", "-Db_lundef=false"]
    if not build_all(build, options, ("fuzzers",), CXX="clang++"):
        return Count(failed=1)
    seconds = os.environ.get("ENGRAM_BENCH_FUZZ_SECONDS", "20")
    count = Count()
    for program in sorted((build / "tests" / "fuzz").glob("*_fuzz")):
        corpus = ROOT / "tests" / "fuzz" / "corpus" / program.name.removesuffix("_fuzz")
        new_inputs = build / "corpus" / program.name
        findings = build / "findings" / program.name
        for folder in (new_inputs, findings):
            folder.mkdir(parents=True, exist_ok=True)
        flags = [f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048", "-close_fd_mask=3"]
        if run([str(program), *flags, f"-artifact_prefix={findings}/", str(new_inputs), str(corpus)]) == 0:
            count.passed += 1
        else:
            count.failed += 1
            print(f"FAILED fuzz {program.name}: inputs in {findings}", flush=True)
    return count if count != Count() else Count(failed=1)


@dataclass(frozen=True)
class Guest:
    """An emulated machine, and the files of tests/guest that run on it."""

    name: str
    tests: tuple[str, ...]
    machine: tuple[str, ...]


# Booting a guest and starting pytest in it take as long as several tests: files that can share a machine do.
GUESTS = (
    Guest(
        "two-nodes",
        ("test_two_nodes", "test_limits", "test_observe"),
        ("--nodes", "1G,1G", "--cpus", "1,1"),
    ),
    # A page of 1 GiB is only sure to be had at boot.
    Guest(
        "huge-pages",
        ("test_copies", "test_huge_pages"),
        ("--nodes", "1G,2G", "--cpus", "1,1", "--kernel-words", "hugepagesz=1G hugepages=1:1"),
    ),
    # The node without CPUs is nearer to one socket, as memory behind CXL is.
    Guest(
        "odd-nodes",
        ("test_odd_nodes",),
        ("--nodes", "1G,512M,256M", "--cpus", "1,1,0", "--distance", "0-1=21,0-2=31,1-2=33"),
    ),
)
GUEST_SECONDS = "1200"  # a limit for each guest
GUESTS_AT_ONCE = 2  # a guest with two CPUs keeps less than two of the host's busy


def guest_tests(guest: Guest) -> Count:
    """Boots the machine and runs its tests. What they print comes in one piece at the end: others run beside it."""
    out = BUILD / "guest" / guest.name
    junit = out / "junit.xml"
    junit.unlink(missing_ok=True)
    # Plugins of other packages would be loaded for nothing: half of pytest's start.
    pytest = ["env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", sys.executable, "-B", "-m", "pytest", "-p", "no:cacheprovider"]
    pytest += ["-v", "-o", "console_output_style=times", f"--junitxml={junit}"]
    command = [str(ROOT / "scripts" / "numa_guest"), *guest.machine, "--timeout", GUEST_SECONDS, "--out", str(out)]
    command += ["--", *pytest, *(f"tests/guest/{name}.py" for name in guest.tests)]
    start = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "ENGRAM_BENCH_BIN": str(BUILD / "engram-bench")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - start
    print(f"+ {' '.join(command)}\n{done.stdout}guest {guest.name}: {seconds:.0f} s", flush=True)
    count = count_junit(junit) if junit.exists() else Count()
    if done.returncode != 0 and count.failed == 0:  # the guest or pytest itself
        count.failed = 1
    return count


def guest() -> Count:
    program = ROOT / "scripts" / "numa_guest"
    if run([str(program), "--is-prepared"]) != 0:
        print("guest: skipped, QEMU, its tools or the guest's kernel is missing; run scripts/setup", flush=True)
        return Count(skipped=1)
    if not build_all(BUILD, ["-Dtests=enabled"]):
        return Count(failed=1)
    with ThreadPoolExecutor(GUESTS_AT_ONCE) as pool:
        return sum(pool.map(guest_tests, GUESTS), Count())


def lint() -> Count:
    return Count(passed=1) if run(["scripts/lint"]) == 0 else Count(failed=1)


SUITES: dict[str, Callable[[], Count]] = {
    "unit": unit, "python": python, "asan": asan, "tsan": tsan, "fuzz": fuzz, "guest": guest, "lint": lint,
}
DEFAULT = tuple(suite for suite in SUITES if suite not in ("asan", "tsan"))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/test", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"any of {', '.join(SUITES)}")
    arguments = parser.parse_args()
    unknown = [suite for suite in arguments.suites if suite not in SUITES]
    if unknown:
        parser.error(f"unknown suite {unknown[0]}; suites: {', '.join(SUITES)}")
    total = Count()
    rows = []
    for suite in arguments.suites or DEFAULT:
        start = time.monotonic()
        count = SUITES[suite]()
        seconds = time.monotonic() - start
        rows.append(f"{suite:8}{count.passed:6} passed{count.failed:4} failed{count.skipped:4} skipped{seconds:8.1f} s")
        total += count
    print("\n".join(rows))
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
