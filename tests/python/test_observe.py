"""`observe` on processes of another program, which map a table, touch it and remove its name."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENGRAM_BENCH_BIN", str(ROOT / "build" / "engram-bench"))
PROGRAM = Path(__file__).with_name("table_process.py")
SCHEMA = json.loads((ROOT / "harness/result/schema/observation.schema.json").read_text())
MIB = 1 << 20


def run(*arguments: str, code: int = 0, user: int | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [BINARY, "observe", *arguments], capture_output=True, text=True, timeout=60, check=False, user=user
    )
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def pids_of(pids: list[int]) -> list[str]:
    return [word for pid in pids for word in ("--pid", str(pid))]


def look(pids: list[int], *arguments: str, code: int = 0) -> Any:
    found = json.loads(run("--json", *pids_of(pids), *arguments, code=code).stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    return found


@contextlib.contextmanager
def tables(mib: int, readers: int, *options: str, name: str = "vllm_engram_test") -> Iterator[list[int]]:
    command = [sys.executable, str(PROGRAM), f"{name}_{os.getpid()}", str(mib), str(readers), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        pids: list[int] = json.loads(program.stdout.readline())
        try:
            yield pids
        finally:
            assert program.stdin is not None
            program.stdin.close()
            program.wait(30)


def codes(found: Any) -> set[str]:
    return {finding["code"] for finding in found["findings"]}


def test_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_a_group_that_shares_a_deleted_file() -> None:
    with tables(16, 3) as pids:
        found = look(pids)
        assert not Path(f"/dev/shm/vllm_engram_test_{os.getpid()}").exists()
    assert [process["pid"] for process in found["processes"]] == pids
    assert found["unobserved"] == []
    (table,) = found["tables"]
    assert table["file"].endswith(" (deleted)")
    assert table["kind"] == "shared"
    assert table["bytes"] == 16 * MIB
    assert table["page_bytes"] == 4096
    # Counted once, though three page tables have the pages.
    assert sum(table["node_pages"].values()) * table["page_bytes"] == table["present_bytes"] == 16 * MIB
    assert [reader["pid"] for reader in table["readers"]] == pids
    assert sum(reader["rss_bytes"] for reader in table["readers"]) == 3 * 16 * MIB
    # PSS is divided by the number of processes that map a page; the kernel rounds once a mapping.
    assert sum(reader["pss_bytes"] for reader in table["readers"]) == pytest.approx(16 * MIB, abs=3 * 4096)
    assert "mapped_by_others" not in codes(found)
    assert codes(found) & {"pages_on_one_node", "pages_spread"}


def test_pages_by_node_are_those_of_the_kernels_own_lines() -> None:
    with tables(8, 1) as pids:
        (table,) = look(pids)["tables"]
        lines = Path(f"/proc/{pids[0]}/numa_maps").read_text().splitlines()
    (line,) = [one for one in lines if "vllm_engram_test" in one]
    assert table["node_pages"] == {node: int(pages) for node, pages in re.findall(r" N(\d+)=(\d+)", line)}
    assert int(table["readers"][0]["address"], 16) == int(line.split()[0], 16)
    assert table["readers"][0]["policies"] == [line.split()[1]]


def test_what_a_process_may_and_holds_is_what_the_kernel_says() -> None:
    cpu = min(os.sched_getaffinity(0))
    with tables(4, 1, "--cpus", str(cpu)) as pids:
        found = look(pids)
        status = Path(f"/proc/{pids[0]}/status").read_text()
    (process,) = found["processes"]
    assert process["cpus"] == str(cpu)
    stated = re.search(r"^Mems_allowed_list:\s+(\S+)$", status, re.MULTILINE)
    assert stated is not None
    assert process["mems_allowed"] == stated[1]
    assert process["user_id"] == os.getuid()
    assert process["task_policy"] == "default"
    assert process["rss_bytes"] > process["pss_bytes"] > 4 * MIB
    assert process["read_ms"]["numa_maps"] > 0


def test_a_reader_that_was_not_given_shows_in_the_pss() -> None:
    with tables(8, 2) as pids:
        found = look(pids[:1])
    assert "mapped_by_others" in codes(found)


def test_parts_of_several_processes_make_the_table() -> None:
    with tables(8, 2, "--parts") as pids:
        found = look(pids)
    (table,) = found["tables"]
    assert table["counted_from_pids"] == pids
    assert table["present_bytes"] == table["bytes"] == 8 * MIB
    assert table["uncounted_bytes"] == 0
    assert codes(found) == {"pages_on_one_node", "partly_in_page_table"}


def test_watch_names_a_process_that_ends_and_goes_on() -> None:
    with contextlib.ExitStack() as ends, tables(4, 1, name="vllm_engram_second") as second:
        first = ends.enter_context(tables(4, 1))
        command = [BINARY, "observe", *pids_of([*first, *second]), "--watch", "0.2"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as watching:
            assert watching.stderr is not None
            try:
                time.sleep(0.5)
                ends.close()
                assert f"process {first[0]} " in watching.stderr.readline()
                assert watching.poll() is None
                watching.send_signal(signal.SIGINT)
                assert watching.wait(20) == 130
            finally:
                watching.kill()


def test_huge_pages_asked_for_and_not_covered() -> None:
    enabled = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    if not enabled.exists() or "[never]" not in enabled.read_text():
        pytest.skip("this machine gives huge pages to shared memory")
    with tables(8, 1, "--thp") as pids:
        (finding,) = [one for one in look(pids)["findings"] if one["code"] == "thp_not_covered"]
    assert finding["text"] == "THP asked for (madvise), 0.0 % covered"


def test_huge_pages_asked_for_too_late_cover_a_part() -> None:
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not enabled.exists() or "[madvise]" not in enabled.read_text():
        pytest.skip("needs transparent huge pages for whoever asks (madvise), for no one else")
    size = 128 * MIB
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        touched = size * 3 // 4
        memory[:touched] = bytes(touched)
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory[touched:] = bytes(size - touched)
        found = look([os.getpid()], "--min-size", "128M")
    (finding,) = [one for one in found["findings"] if one["code"] == "thp_not_covered"]
    share = re.fullmatch(r"THP asked for \(madvise\), (\d+\.\d) % covered", finding["text"])
    assert share is not None
    assert 20 < float(share[1]) < 90, "a quarter, and what the kernel has put together since"
    table = found["tables"][finding["table"]]
    assert table["huge_pages"]["asked_by"] == "madvise"
    assert float(share[1]) == pytest.approx(
        100 * table["huge_pages"]["mapped_bytes"] / table["present_bytes"], abs=0.06
    )


def test_the_table_for_people_says_the_same() -> None:
    with tables(8, 2) as pids:
        text = run(*pids_of(pids)).stdout
    assert re.search(r"Table 0: /dev/shm/vllm_engram_test_\d+ \(deleted\), shared, 8\.0 MiB", text)
    assert "table 0: " in text
    for pid in pids:
        assert len(re.findall(rf"^\s+{pid}\s", text, re.MULTILINE)) == 2


def test_other_names_and_sizes_on_request() -> None:
    with tables(8, 1, name="other") as pids:
        assert look(pids, code=1)["unobserved"][0]["code"] == "no_tables"
        (by_name,) = look(pids, "--match", "shm/other")["tables"]
        assert by_name["bytes"] == 8 * MIB
        by_size = look(pids, "--min-size", "8M", "--match", "^/dev/shm/")["tables"]
        assert [table["bytes"] for table in by_size] == [8 * MIB]
        look(pids, "--min-size", "9M", "--match", "^/dev/shm/", code=1)


def test_private_memory_by_its_size() -> None:
    with mmap.mmap(-1, 48 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[: 48 * MIB] = bytes(48 * MIB)
        found = look([os.getpid()], "--min-size", "48M")
    assert any(table["kind"] == "anonymous" and table["present_bytes"] >= 48 * MIB for table in found["tables"])


def test_watch_looks_again_until_the_processes_end() -> None:
    with tables(4, 1) as pids:
        command = [BINARY, "observe", "--json", "--watch", "0.2", *pids_of(pids)]
        watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert watch.stdout is not None
        first, second = (json.loads(watch.stdout.readline()) for _ in range(2))
    rest, error = watch.communicate(timeout=30)
    assert watch.returncode == 0
    for one in (first, second):
        jsonschema.Draft202012Validator(SCHEMA).validate(one)
        assert one["tables"][0]["bytes"] == 4 * MIB
    assert json.loads(rest.splitlines()[-1])["tables"] == []
    assert re.search("is gone|has no memory", error)


def test_watch_ends_with_130_on_a_signal() -> None:
    with tables(4, 1) as pids:
        watch = subprocess.Popen(
            [BINARY, "observe", "--watch", "60", *pids_of(pids)], stdout=subprocess.PIPE, text=True
        )
        assert watch.stdout is not None
        watch.stdout.readline()
        time.sleep(0.2)
        watch.send_signal(signal.SIGINT)
        assert watch.wait(10) == 130
        watch.stdout.close()


# ---- bad input


def test_a_process_that_is_gone() -> None:
    done = subprocess.run(["true"], check=True)
    assert done.returncode == 0
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    result = run("--pid", str(ended.pid), code=1)
    assert f"process {ended.pid} is gone" in result.stderr
    assert result.stdout == ""


def test_one_that_is_gone_does_not_hide_the_others() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    with tables(4, 1) as pids:
        found = look([*pids, ended.pid], code=1)
    assert len(found["tables"]) == 1
    assert [(one["pid"], one["code"]) for one in found["unobserved"]] == [(ended.pid, "gone")]


def test_a_process_of_another_user() -> None:
    if os.getuid() == 0:
        with tables(4, 1) as pids:
            result = run("--pid", str(pids[0]), code=1, user=65534)
        other = pids[0]
    else:
        result, other = run("--pid", "1", code=1), 1
    assert f"process {other} (" in result.stderr
    assert "may not be looked into" in result.stderr
    assert "Permission denied" in result.stderr
    assert "Run as that user or as root" in result.stderr


def test_a_process_without_tables() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            result = run("--pid", str(other.pid), code=1)
        finally:
            other.kill()
    assert f"process {other.pid} (sleep) maps no table" in result.stderr
    assert "Its largest mappings: " in result.stderr
    assert "--match" in result.stderr


def test_a_zombie_and_a_thread_of_the_kernel_have_no_memory() -> None:
    with subprocess.Popen(["true"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        result = run("--pid", str(zombie.pid), code=1)
    assert "has no memory of its own" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "--pid"),
        (("--pid", "0"), "1 and above"),
        (("--pid", "-5"), "-5"),
        (("--pid", "worker"), "--pid"),
        (("--pid", "1", "--match", "("), "--match"),
        (("--pid", "1", "--min-size", "many"), "--min-size"),
        (("--pid", "1", "--min-size", "0"), "--min-size"),
        (("--pid", "1", "--min-size", "5X"), "--min-size"),
        (("--pid", "1", "--watch", "-1"), "--watch"),
    ],
)
def test_bad_usage(arguments: tuple[str, ...], named: str) -> None:
    result = run(*arguments, code=2)
    assert result.stdout == ""
    assert named in result.stderr
