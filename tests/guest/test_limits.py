"""Two nodes of 1 GiB: a placement that is not obtained, and what control groups leave."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench import PAGE, Bench, pages, snapshots

CGROUP = Path("/sys/fs/cgroup")
MIB = 1 << 20
# 25 MiB a node where interleaved; one rank on each, since process starts are most of what a run takes here.
TABLES = {"model.table_scale": 0.0002, "storage.policy": "interleave:0,1", "parallel.tp": 1}
KEPT = Path("/proc/sys/vm/min_free_kbytes")


def free_bytes(node: int) -> int:
    text = Path(f"/sys/devices/system/node/node{node}/meminfo").read_text()
    found = re.search(r"MemFree:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) * 1024


def watermarks(node: int) -> tuple[int, int]:
    """Free bytes below which only what must lie there may take more (low), and below which nothing may (min)."""
    pages = {"low": 0, "min": 0}
    here = False
    for line in Path("/proc/zoneinfo").read_text().splitlines():
        words = line.split()
        here = words[1] == f"{node}," if words[0] == "Node" else here
        if here and words[0] in pages:
            pages[words[0]] += int(words[1])
    return pages["low"] * PAGE, pages["min"] * PAGE


@pytest.fixture(scope="module")
def hog() -> Iterator[Path]:
    """A tmpfs on node 1; and the kernel keeps so much for itself that `low` and `min` are far apart."""
    before = KEPT.read_text()
    KEPT.write_text(str(400 << 10))
    folder = Path("/tmp/hog")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mpol=bind:1,size=100%", "hog", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        KEPT.write_text(before)


def fill_node_1(hog: Path) -> None:
    """Its free memory is below `low` and well above `min` then: room for what must lie there, while pages that may lie
    elsewhere (interleave) go to node 0."""
    low, least = watermarks(1)
    assert low - least >= 40 * MIB
    with (hog / "file").open("ab") as file:
        block = bytes(MIB)
        for _ in range(20):
            while free_bytes(1) > low - 4 * MIB:
                file.write(block)
            time.sleep(0.2)  # the kernel gives back what it can of the page cache meanwhile
            if free_bytes(1) <= low - 2 * MIB:
                return
    raise AssertionError(f"{free_bytes(1)} bytes of node 1 stay free, {low} are low")


@pytest.fixture
def node_1_is_full(hog: Path) -> None:
    fill_node_1(hog)


def test_a_placement_that_was_not_obtained_fails_the_run_with_the_figures(bench: Bench, node_1_is_full: None) -> None:
    result = bench.run(TABLES, code=1)
    pattern = (
        r"backing 0, after_register: policy interleave:0-1 was asked for and not obtained: "
        r"interleave:0-1: node 0 holds \d+\.\d\d % of \d+ pages, asked 50\.00 % \+- 1\.00 %"
    )
    assert re.search(pattern, bench.error), bench.error
    assert result["complete"] is False
    assert re.search(pattern, result["failures"][0]["text"])
    assert result["cells"] == [] or all(cell["n"] == 0 for cell in result["cells"])


def test_a_wider_tolerance_takes_it(bench: Bench, node_1_is_full: None) -> None:
    result = bench.run({**TABLES, "storage.tolerance": 0.6})
    found = pages(result)[0]
    assert found[0] > found.get(1, 0)


@pytest.fixture(scope="module")
def degraded_arm(hog: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Bench]:
    """Arm A was obtained, arm B was not, and the run goes on."""
    fill_node_1(hog)
    bench = Bench(tmp_path_factory.mktemp("degraded"))
    settings = {
        **TABLES,
        "experiment.factor": "storage.policy",
        "experiment.arms": {"A": "bind:0", "B": "interleave:0,1"},
    }
    return bench.run(settings, options=("--allow-degraded",)), bench


def test_allow_degraded_records_it_as_a_warning_with_the_figures(degraded_arm: tuple[Any, Bench]) -> None:
    result, bench = degraded_arm
    degraded = [one for one in result["warnings"] if one["code"] == "placement_degraded"]
    assert {one["figures"]["snapshot"] for one in degraded} == {"after_register", "after_load", "steady"}
    assert all("policy interleave:0-1 was asked for and not obtained" in one["text"] for one in degraded)
    assert "placement_degraded" in bench.text
    shares = snapshots(result, "B")[0]["backings"][0]["observed_shares"]
    assert shares["0"] > 0.52


def test_link_1_stays_broken_where_a_placement_was_not_obtained(degraded_arm: tuple[Any, Bench]) -> None:
    (comparison,) = degraded_arm[0]["comparisons"]
    assert comparison["chain"]["links"][0]["status"] == "broken"
    assert comparison["chain"]["broke_at"] == "pages"


def test_a_copy_that_does_not_fit_its_node_is_refused_before_anything_is_allocated(
    bench: Bench, node_1_is_full: None
) -> None:
    settings = {"model.table_scale": 0.0004, "storage.policy": "bind:0", "storage.copies": "per-numa-node"}
    bench.run(settings, code=1)
    assert re.search(r"memory of NUMA node 1: needs .*MiB", bench.error), bench.error
    assert "nothing was allocated" in bench.error


def test_ranks_that_do_not_fit_their_node_are_refused(bench: Bench, node_1_is_full: None) -> None:
    bench.run({"storage.bind_ranks": 1, "storage.policy": "none"}, code=1)
    assert re.search(r"memory of NUMA node 1: needs .*MiB", bench.error), bench.error
    assert "nothing was allocated" in bench.error


def group(name: str, **settings: str) -> tuple[str, ...]:
    """A command prefix: in a new control group with these settings; `_` stands for a dot."""
    controllers = {key.split("_")[0] for key in settings}
    (CGROUP / "cgroup.subtree_control").write_text(" ".join(f"+{one}" for one in controllers))
    folder = CGROUP / name
    folder.mkdir(exist_ok=True)
    for key, value in settings.items():
        (folder / key.replace("_", ".")).write_text(value)
    return ("sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh")


def test_a_memory_limit_refuses_what_does_not_fit_with_the_figures(bench: Bench) -> None:
    before = group("small", memory_max=str(300 * MIB))
    bench.run({"model.table_scale": 0.002, "storage.policy": "bind:0"}, code=1, before=before)
    assert re.search(r"memory limit of the cgroup: needs \d+\.\d MiB \(\d+ bytes\), \d+\.\d MiB free", bench.error)
    assert "nothing was allocated" in bench.error
    assert not any(Path("/dev/shm").iterdir())
    events = dict(line.split() for line in (CGROUP / "small" / "memory.events").read_text().splitlines())
    assert int(events["oom_kill"]) == 0


def test_a_run_that_fits_its_memory_limit_runs(bench: Bench) -> None:
    result = bench.run({"storage.policy": "bind:0"}, before=group("fits", memory_max=str(400 * MIB)))
    assert result["complete"] is True
    assert result["ledger"][0]["observed"]["backing_allocated_bytes"] == result["ledger"][0]["backing_bytes"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"storage.policy": "bind:0-1"}, "cpuset.mems allows 0"),
        ({"storage.policy": "weighted:0=3,1=1"}, "cpuset.mems allows 0"),
        ({"storage.policy": "bind:0", "storage.copies": "per-numa-node"}, "may use the memory of NUMA node 0 alone"),
    ],
)
def test_nodes_that_the_cpuset_does_not_allow_are_refused(bench: Bench, settings: dict[str, Any], text: str) -> None:
    bench.run(settings, code=1, before=group("only-0", cpuset_mems="0"))
    assert text in bench.error


def test_cpus_that_the_cpuset_does_not_allow_are_refused(bench: Bench) -> None:
    bench.run({"storage.bind_ranks": "1"}, code=1, before=group("cpu-0", cpuset_mems="0-1", cpuset_cpus="0"))
    assert "this process may use no CPU of NUMA node 1" in bench.error


def test_memory_that_the_cpuset_does_not_allow_is_refused_to_ranks(bench: Bench) -> None:
    bench.run({"storage.bind_ranks": "1"}, code=1, before=group("mem-0", cpuset_mems="0"))
    assert "binding_degraded" in bench.error
    assert "cpuset.mems allows 0" in bench.error
