"""`observe` where there are two nodes: processes of another program, each bound to a CPU of either node."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from bench import BINARY, ROOT

PROGRAM = ROOT / "tests" / "python" / "table_process.py"
MIB = 1 << 20


@contextlib.contextmanager
def tables(*arguments: str, before: tuple[str, ...] = ()) -> Iterator[list[int]]:
    command = [*before, sys.executable, str(PROGRAM), "vllm_engram_guest", "16", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        try:
            yield json.loads(program.stdout.readline())
        finally:
            assert program.stdin is not None
            program.stdin.close()
            program.wait(60)


def look(pids: list[int]) -> Any:
    command = [BINARY, "observe", "--json", *(word for pid in pids for word in ("--pid", str(pid)))]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)


def texts(found: Any) -> list[str]:
    return [finding["text"] for finding in found["findings"]]


@pytest.mark.parametrize(("cpus", "node"), [("0,1", 0), ("1,0", 1)])
def test_all_pages_lie_where_the_first_toucher_runs(cpus: str, node: int) -> None:
    with tables("2", "--cpus", cpus) as pids:
        found = look(pids)
    (table,) = found["tables"]
    assert table["node_pages"] == {str(node): 16 * MIB // 4096}
    assert texts(found) == [f"all pages of this table lie on node {node}; readers' CPUs are on nodes 0-1"]
    assert [process["cpu_nodes"] for process in found["processes"]] == [[int(cpu)] for cpu in cpus.split(",")]
    assert sum(reader["pss_bytes"] for reader in table["readers"]) == 16 * MIB


def test_a_table_that_no_process_has_whole_is_counted_from_both() -> None:
    with tables("2", "--cpus", "0,1", "--parts") as pids:
        found = look(pids)
    (table,) = found["tables"]
    assert table["node_pages"] == {"0": 8 * MIB // 4096, "1": 8 * MIB // 4096}
    assert table["counted_from_pids"] == pids
    assert "pages of this table lie on nodes 0 (50.0 %), 1 (50.0 %); readers' CPUs are on nodes 0-1" in texts(found)
    assert {finding["code"] for finding in found["findings"]} == {"pages_spread", "partly_in_page_table"}


def test_a_task_policy_is_shown_and_spreads_the_pages() -> None:
    with tables("1", "--cpus", "0", before=("numactl", "--interleave=0,1")) as pids:
        found = look(pids)
    (table,) = found["tables"]
    assert set(table["node_pages"]) == {"0", "1"}
    assert abs(table["node_pages"]["0"] - table["node_pages"]["1"]) <= 1
    assert found["processes"][0]["task_policy"] == "interleave:0-1"
    assert texts(found) == ["pages of this table lie on nodes 0 (50.0 %), 1 (50.0 %); readers' CPUs are on node 0"]


def test_memory_that_is_bound_away_from_its_cpu() -> None:
    with tables("1", "--cpus", "0", before=("numactl", "--membind=1")) as pids:
        found = look(pids)
    assert found["tables"][0]["node_pages"] == {"1": 16 * MIB // 4096}
    assert found["processes"][0]["task_policy"] == "bind:1"
    assert texts(found) == ["all pages of this table lie on node 1; readers' CPUs are on node 0"]
