"""Huge pages on two nodes: pools of 2 MiB and 1 GiB pages by node, transparent huge pages of shared and private memory.
Pools and switches are set in the guest alone; the page of 1 GiB is reserved when it boots."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench import NO_HUGE_PAGES, PAGE, ROOT, SOME_HUGE_PAGES, Bench, pages, snapshots

HUGE = 2 << 20
THP = Path("/sys/kernel/mm/transparent_hugepage")
# A rank on each node reads the one shard.
MOVED = {"storage.bind_ranks": "device-local", "parallel.tp": 1}
RANKS = 2


def set_pool(node: int, count: int, kib: int = 2048) -> None:
    file = Path(f"/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB/nr_hugepages")
    file.write_text(str(count))
    assert int(file.read_text()) == count, f"node {node} has no room for {count} pages of {kib} KiB"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, SOME_HUGE_PAGES)


@pytest.fixture
def pool() -> Iterator[None]:
    """20 pages of 2 MiB on each node: the tables take 8."""
    for node in (0, 1):
        set_pool(node, 20)
    yield
    for node in (0, 1):
        set_pool(node, 0)


def ledger(result: Any, arm: str = "A") -> Any:
    return next(one for one in result["ledger"] if one["arm"] == arm)


def test_anon_has_small_pages_where_the_system_gives_huge_ones_to_all(bench: Bench) -> None:
    before = (THP / "enabled").read_text().partition("[")[2].partition("]")[0]
    (THP / "enabled").write_text("always")
    try:
        settings = {"storage.backing": "anon", "parallel.table_mode": "private", "parallel.dp": 1}
        result = bench.run({**settings, "storage.policy": "interleave:0,1"})
    finally:
        (THP / "enabled").write_text(before)
    for one in pages(result):
        assert abs(one[0] - one[1]) <= 1
    assert bench.rank_snapshot(0, "steady", 0)["mapping"]["huge_pages"]["share"] == 0


def test_without_a_pool_the_run_is_skipped_and_says_what_to_do(bench: Bench) -> None:
    bench.run({"storage.backing": "hugetlb-2m"}, code=77)
    assert "no pool of 2.0 MiB huge pages" in bench.error
    assert "nr_hugepages" in bench.error


def test_a_pool_on_the_wrong_node_is_no_pool(bench: Bench) -> None:
    set_pool(0, 20)
    try:
        bench.run({"storage.backing": "hugetlb-2m", "storage.policy": "bind:1"}, code=77)
        assert "NUMA node 1 has no pool" in bench.error
        assert "node 0: 20 of 20 free" in bench.error
    finally:
        set_pool(0, 0)


def test_a_pool_that_is_too_small_is_refused_with_figures(bench: Bench) -> None:
    set_pool(0, 20)
    set_pool(1, 3)
    try:
        for policy in ("bind:1", "interleave:0,1"):
            bench.run({"storage.backing": "hugetlb-2m", "storage.policy": policy}, code=1)
            assert "NUMA node 1 is too small" in bench.error, bench.error
            assert "3 can be had" in bench.error
            assert "node 1: 3 of 3 free" in bench.error
    finally:
        set_pool(0, 0)
        set_pool(1, 0)


def test_coresident_arms_ask_the_pools_together(bench: Bench) -> None:
    set_pool(0, 10)
    set_pool(1, 10)
    settings = {
        "storage.backing": "hugetlb-2m",
        "experiment.factor": "storage.policy",
        "experiment.arms": {"A": "bind:0", "B": "interleave:0,1"},  # 7 pages of node 0, and 4 of each node
        "experiment.coresident": True,
    }
    try:
        bench.run(settings, code=1)
    finally:
        set_pool(0, 0)
        set_pool(1, 0)
    assert "experiment.coresident holds the tables of all arms at once" in bench.error
    assert "huge pages of NUMA node 0 is too small: the tables need 11" in bench.error


@pytest.mark.parametrize("policy", ["bind:1", "interleave:0,1", "preferred:0"])
def test_hugetlb_pages_lie_where_the_policy_says(bench: Bench, pool: None, policy: str) -> None:
    result = bench.run(MOVED | {"storage.backing": "hugetlb-2m", "storage.policy": policy})
    backings = [one for snapshot in snapshots(result, "A") for one in snapshot["backings"]]
    assert [one["kernel_page_bytes"] for one in backings] == [HUGE]
    for found in pages(result):
        if policy.startswith("interleave"):
            share = sum(found.values()) / 2
            assert set(found) == {0, 1}
            assert all(abs(count - share) <= 1 for count in found.values()), found
        else:
            assert set(found) == {int(policy[-1])}, found
    entry = ledger(result)
    assert entry["backing_bytes"] == sum(one["bytes"] for one in backings)
    assert entry["observed"]["backing_allocated_bytes"] == entry["backing_bytes"]
    assert entry["observed"]["node_growth_bytes"] == entry["backing_bytes"]
    assert entry["observed"]["pss_bytes"]["value"] is None
    assert "hugetlb" in entry["observed"]["pss_bytes"]["reason"]
    for rank in range(RANKS):
        mapping = bench.rank_snapshot(0, "steady", rank)["mapping"]
        assert mapping["rss_bytes"] == mapping["bytes"]
        assert mapping["shared_bytes"] == mapping["bytes"]  # two readers
        assert mapping["huge_pages"]["hugetlb_bytes"] == mapping["bytes"]
        assert mapping["policy"] == policy.replace("0,1", "0-1")
    assert not [one for one in result["warnings"] if one["code"] == "ledger_disagrees"]


def test_without_pretouch_every_readers_own_policy_places_hugetlb_pages(bench: Bench, pool: None) -> None:
    """A hugetlb file keeps no policy: a peer that registers first places pages by the policy of its own mapping."""
    settings = {"parallel.tp": 1, "storage.backing": "hugetlb-2m", "storage.policy": "bind:1"}
    settings["storage.pretouch"] = "none"
    result = bench.run(settings | {"storage.register": "concurrent", "storage.bind_ranks": "0"})
    assert all(set(found) == {1} for found in pages(result, "A", "after_register"))


def test_a_page_of_1_gib(bench: Bench) -> None:
    settings = {"parallel.tp": 1, "storage.backing": "hugetlb-1g", "storage.policy": "bind:1"}
    result = bench.run(settings)
    (backing,) = snapshots(result, "A")[0]["backings"]
    assert backing["kernel_page_bytes"] == backing["bytes"] == 1 << 30
    assert pages(result) == [{1: 1}]
    assert ledger(result)["observed"]["backing_allocated_bytes"] == 1 << 30
    assert ledger(result)["observed"]["node_growth_bytes"] == 1 << 30
    bench.run(settings | {"storage.policy": "bind:0"}, code=77)
    assert "NUMA node 0 has no pool of 1.0 GiB" in bench.error


@pytest.fixture
def shmem_advise() -> Iterator[None]:
    before = (THP / "shmem_enabled").read_text().split("[")[1].split("]")[0]
    (THP / "shmem_enabled").write_text("advise")
    yield
    (THP / "shmem_enabled").write_text(before)


def coverage(bench: Bench, key: str, label: str = "steady") -> list[float]:
    out = []
    for rank in range(RANKS):
        mapping = bench.rank_snapshot(0, label, rank)["mapping"]
        assert mapping["kernel_page_bytes"] == PAGE
        assert mapping["huge_pages"]["share"] == mapping["huge_pages"][key] / mapping["rss_bytes"]
        out.append(mapping["huge_pages"][key] / mapping["bytes"])
    return out


@pytest.mark.parametrize("policy", ["bind:1", "interleave:0,1"])
def test_shared_memory_in_transparent_huge_pages(bench: Bench, shmem_advise: None, policy: str) -> None:
    result = bench.run(MOVED | {"storage.backing": "shm-thp", "storage.policy": policy})
    assert coverage(bench, "shmem_bytes") == [1.0] * RANKS  # the peers' page tables too
    assert not [one for one in result["warnings"] if one["code"] == "thp_not_covered"]
    for found in pages(result):
        assert all(count % (HUGE // PAGE) == 0 for count in found.values()), found
        if policy == "bind:1":
            assert set(found) == {1}
        else:
            share = sum(found.values()) / 2
            assert all(abs(count - share) <= HUGE // PAGE for count in found.values()), found
    entry = ledger(result)
    for figure in ("pss_bytes", "backing_allocated_bytes"):
        assert entry["observed"][figure] == entry["backing_bytes"], figure


def test_shared_memory_without_the_switch_is_a_skip(bench: Bench) -> None:
    bench.run({"storage.backing": "shm-thp"}, code=77)
    assert "shmem_enabled is never" in bench.error


@pytest.mark.parametrize("policy", ["bind:1", "interleave:0,1"])
def test_private_memory_in_transparent_huge_pages(bench: Bench, policy: str) -> None:
    result = bench.run(
        MOVED | {"storage.backing": "anon-thp", "parallel.table_mode": "private", "storage.policy": policy}
    )
    assert coverage(bench, "anon_bytes") == [1.0] * RANKS
    assert ledger(result)["observed"]["backing_allocated_bytes"] == ledger(result)["backing_bytes"]
    if policy == "bind:1":
        assert all(set(found) == {1} for found in pages(result))


def test_huge_pages_that_were_not_obtained_are_a_finding(bench: Bench, shmem_advise: None) -> None:
    settings = {"parallel.tp": 1, "storage.backing": "shm-thp", "storage.policy": "bind:0"}
    result = bench.run(settings, before=NO_HUGE_PAGES)
    assert coverage(bench, "shmem_bytes") == [0.0] * RANKS
    (warning,) = [one for one in result["warnings"] if one["code"] == "thp_not_covered"]
    assert "0.0 %" in warning["text"]
    assert warning["figures"]["covered_share"] == 0


def test_the_contract_holds_on_huge_pages(pool: None, shmem_advise: None) -> None:
    """The combinations that a machine without pools and with one node skips by name."""
    path = ROOT / "build" / "tests" / "contract" / "contract_test"
    if not path.exists():
        pytest.skip(f"{path} is not built")
    # One table mode, to keep the suite short; the variable names others ("All/Contract.*").
    default = ["shared_hugetlb_2m*", "shared_shm_thp_bind*", "shared_shm_bind_per_numa_node"]
    names = ":".join(f"All/Contract.Readers*/{name}" for name in default)
    names += ":All/Contract.Replayed*/shared_cuda_host_numa*per_numa_node"  # pieces on both nodes, by the fake driver
    wanted = os.environ.get("ENGRAM_BENCH_CONTRACT_FILTER", names)
    done = subprocess.run([path, f"--gtest_filter={wanted}"], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "SKIPPED" not in done.stdout, done.stdout[-4000:]
    print(done.stdout[-400:])
