"""`scripts/numa_guest` itself: what it refuses, what passes between host and guest, and that no QEMU is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from bench import ROOT

# Not by its first line: a python3 found in PATH may be a wrapper that changes PATH (pyenv's).
PROGRAM = (sys.executable, str(ROOT / "scripts" / "numa_guest"))
FORBIDDEN = ROOT / "written-by-a-guest"
# Quotes, signs that a shell expands, and an end of line.
ODD_VALUE = 'it\'s "$HOME" `id` \\ *\nand a second line'
PATH = f"{os.environ['PATH']}:/nonexistent/engram-bench-tests"

# One boot answers all questions. In sh, since Python's start takes seconds under emulation.
QUESTIONS = r"""
out=$ENGRAM_BENCH_GUEST_OUT
printf 'to stdout\n\377, no end of line'
printf 'to stderr\n\376, no end of line' >&2
env -0 >"$out/environment"
id -u >"$out/user"
pwd >"$out/folder"
cat >"$out/stdin"
{ echo forbidden >"$1"; } 2>"$out/refused"
for node in /sys/devices/system/node/node[0-9]*; do
  for file in cpulist distance meminfo; do cat "$node/$file" >"$out/${node##*/}-$file"; done
done
exit 7
"""

needs_guest = pytest.mark.skipif(
    subprocess.run([*PROGRAM, "--is-prepared"], check=False).returncode != 0,
    reason="QEMU, its tools or the guest's kernel is missing; run scripts/setup",
)


def numa_guest(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=120, check=False)


# ---- without a boot --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--nodes 1G --cpus 1,1", "1 nodes but 2 CPU counts"),
        ("--nodes 1G,1G,1G --cpus 1,1", "3 nodes but 2 CPU counts"),
        ("--nodes 255M,1G", "node 0 needs at least 256M and one CPU"),
        ("--nodes 0,1G", "node 0 needs at least 256M and one CPU"),
        ("--cpus 0,1", "node 0 needs at least 256M and one CPU"),
        ("--nodes 1G,0 --cpus 1,0", "node 1 has neither memory nor CPUs"),
        ("--nodes 1G,1T", "1T: a size is a number of MiB"),
        ("--nodes 1G,-1", "-1: a size is a number of MiB"),
        ("--nodes 1G,", ": a size is a number of MiB"),
        ("--cpus 1,one", "1,one: CPUs are a list of counts"),
        ("--distance 5", "5: a distance between nodes is 11 to 254"),
        ("--distance 10", "10: a distance between nodes is 11 to 254"),
        ("--distance 0-1=255", "255: a distance between nodes is 11 to 254"),
        ("--distance 0:1=21", "0:1=21: a distance is a number, or a list of pairs"),
        ("--distance 0-7=21", "--distance 0-7: not two different nodes of 2"),
        ("--distance 0-0=21", "--distance 0-0: not two different nodes of 2"),
        ("--distance 0-1=21,1-0=31", "0-1=21,1-0=31: names the distance 0-1 twice"),
        ("--timeout 0", "0: give seconds above 0"),
        ("--sockets 2", "--sockets"),
    ],
)
def test_what_makes_no_machine_is_refused(options: str, reason: str) -> None:
    done = numa_guest("--timeout", "60", *options.split(), "--", "true")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert reason in done.stderr


@pytest.mark.parametrize("arguments", [(), ("--",), ("--nodes", "1G,1G", "--")])
def test_a_command_is_needed(arguments: tuple[str, ...]) -> None:
    done = numa_guest(*arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "no command; give it behind --" in done.stderr


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_out_that_cannot_be_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("mine")
    done = numa_guest("--timeout", "60", "--out", str(tmp_path / name), "--", "true")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert f"--out {tmp_path / name}: " in done.stderr
    assert "give a folder" in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


# ---- one boot --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answers:
    code: int
    stdout: bytes
    stderr: bytes
    out: Path
    wrote_to_checkout: bool

    def text(self, name: str) -> str:
        return (self.out / name).read_text()

    def environment(self) -> dict[str, str]:
        return dict(entry.split("=", 1) for entry in self.text("environment").split("\0") if entry)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    out = tmp_path_factory.mktemp("guest") / "made, by the tool"  # QEMU takes a comma for the end of a path
    machine = ["--nodes", "512M,256M,256M", "--cpus", "1,1,0", "--distance", "0-1=21,0-2=31,1-2=33"]
    own = {"PATH": PATH, "ENGRAM_BENCH_ODD": ODD_VALUE, "TZ": "UTC-5", "SECRET_TOKEN": "secret"}
    command = ["sh", "-c", QUESTIONS, "sh", str(FORBIDDEN)]
    try:
        done = subprocess.run(
            [*PROGRAM, *machine, "--timeout", "240", "--out", str(out), "--", *command],
            input=b"not for the guest",
            capture_output=True,
            timeout=300,
            check=False,
            cwd=ROOT / "tests",
            env={**os.environ, **own},
        )
    finally:
        wrote = FORBIDDEN.exists()
        FORBIDDEN.unlink(missing_ok=True)
    assert done.returncode not in (2, 124, 125), done.stderr.decode(errors="replace")
    return Answers(done.returncode, done.stdout, done.stderr, out, wrote)


@needs_guest
def test_stdout_is_the_commands_to_the_byte(answers: Answers) -> None:
    assert answers.stdout == b"to stdout\n\377, no end of line"


@needs_guest
def test_stderr_is_the_commands_to_the_byte(answers: Answers) -> None:
    assert answers.stderr == b"to stderr\n\376, no end of line"


@needs_guest
def test_exit_code_is_the_commands(answers: Answers) -> None:
    assert answers.code == 7


@needs_guest
def test_files_of_out_are_on_the_host(answers: Answers) -> None:
    assert answers.text("user") == "0\n"  # root, whoever starts the tool
    assert answers.text("folder") == f"{ROOT / 'tests'}\n"


@needs_guest
def test_stdin_is_empty(answers: Answers) -> None:
    assert answers.text("stdin") == ""


@needs_guest
def test_the_checkout_is_read_only(answers: Answers) -> None:
    assert not answers.wrote_to_checkout
    assert "Read-only file system" in answers.text("refused")


@needs_guest
def test_environment_that_passes(answers: Answers) -> None:
    inside = answers.environment()
    assert inside["PATH"] == PATH
    assert inside["TZ"] == "UTC-5"
    assert inside["ENGRAM_BENCH_ODD"] == ODD_VALUE
    assert inside["ENGRAM_BENCH_EMULATED_TIME"] == "1"
    assert inside["ENGRAM_BENCH_GUEST_OUT"] == str(answers.out)


@needs_guest
def test_no_other_environment_passes(answers: Answers) -> None:
    documented = {"PATH", "LANG", "LC_ALL", "TZ", "NO_COLOR", "HOME"}
    of_the_shell = {"PWD", "OLDPWD", "SHLVL", "_"}
    inside = {name for name in answers.environment() if not name.startswith("ENGRAM_BENCH_")}
    assert inside - documented - of_the_shell == set()
    assert answers.environment()["HOME"] == "/tmp"


@needs_guest
def test_nodes_are_those_asked_for(answers: Answers) -> None:
    assert len(list(answers.out.glob("node*-cpulist"))) == 3
    assert [answers.text(f"node{node}-cpulist").strip() for node in range(3)] == ["0", "1", ""]
    distances = [[int(word) for word in answers.text(f"node{node}-distance").split()] for node in range(3)]
    assert distances == [[10, 21, 31], [21, 10, 33], [31, 33, 10]]


@needs_guest
@pytest.mark.parametrize(("node", "mib"), [(0, 512), (1, 256), (2, 256)])
def test_memory_of_a_node(answers: Answers, node: int, mib: int) -> None:
    found = re.search(r"MemTotal:\s+(\d+) kB", answers.text(f"node{node}-meminfo"))
    assert found is not None
    # The kernel keeps its own and what it starts with, on whichever node.
    assert 0.7 * mib <= int(found[1]) / 1024 <= mib


# ---- what is left ----------------------------------------------------------------------------------------------------


def guests_in(folder: Path) -> list[int]:
    """QEMU processes whose control folder lies in `folder`; one that has ended, waited for or not, is none."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:  # gone
            continue
        if b"qemu-system" in words[0] and any(os.fsencode(folder) in word for word in words):
            found.append(int(process.name))
    return found


def wait_for_guests(folder: Path, count: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while len(guests_in(folder)) != count:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the tool keeps its control folder, by which its guest is known. A guest that is left is stopped here."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield tmp_path
    for pid in guests_in(tmp_path):
        os.kill(pid, signal.SIGKILL)


@needs_guest
def test_timeout_stops_the_guest(temporary: Path) -> None:
    start = time.monotonic()
    done = numa_guest("--nodes", "512M", "--timeout", "3", "--", "sleep", "60")
    assert 3 <= time.monotonic() - start < 40
    assert (done.returncode, done.stdout) == (124, ""), done.stderr
    assert "not ended after 3.0 s" in done.stderr
    assert "--timeout" in done.stderr
    assert guests_in(temporary) == []
    assert list(temporary.iterdir()) == []


@needs_guest
@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGTERM, 128 + signal.SIGTERM, id="sigterm"),  # handled
        pytest.param(signal.SIGKILL, -signal.SIGKILL, id="sigkill"),  # the kernel stops the guest
    ],
)
def test_a_killed_tool_leaves_no_guest(temporary: Path, number: int, code: int) -> None:
    command = [*PROGRAM, "--nodes", "512M", "--timeout", "60", "--", "sleep", "60"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            assert wait_for_guests(temporary, 1, 30)
            process.send_signal(number)
            assert process.wait(timeout=30) == code
        finally:
            process.kill()
    assert wait_for_guests(temporary, 0, 10)
    if number == signal.SIGTERM:
        assert list(temporary.iterdir()) == []
