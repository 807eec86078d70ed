"""Backings of huge pages, pinned rounding and who faulted what, in whole runs. What this machine cannot give is skipped
by name; tests/guest has the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench import NO_HUGE_PAGES, SOME_HUGE_PAGES, Bench

HUGE = 2 << 20
THP = Path("/sys/kernel/mm/transparent_hugepage")

@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Two replicas of one rank."""
    return Bench(tmp_path, SOME_HUGE_PAGES | {"parallel.tp": 1})


def mapping_of(bench: Bench, rank: int, label: str = "steady") -> Any:
    return bench.rank_snapshot(0, label, rank)["mapping"]


def switch(name: str) -> str:
    """The choice that counts for pages of 2 MiB; "never" on a kernel without transparent huge pages."""
    for file in (THP / "hugepages-2048kB" / name, THP / name):
        if file.exists():
            choice = file.read_text().split("[")[1].split("]")[0]
            if choice != "inherit":
                return choice
    return "never"


def free_huge_pages(kib: int) -> int:
    return sum(
        int(file.read_text())
        for file in Path("/sys/devices/system/node").glob(f"node*/hugepages/hugepages-{kib}kB/nr_hugepages")
    )


@pytest.mark.parametrize(("backing", "kib"), [("hugetlb-2m", 2048), ("hugetlb-1g", 1048576)])
def test_huge_pages_that_this_machine_lacks_are_a_skip(bench: Bench, backing: str, kib: int) -> None:
    if free_huge_pages(kib) > 0:
        pytest.skip(f"this machine has a pool of {kib} KiB pages")
    bench.run({"storage.backing": backing}, code=77)
    assert "no pool of" in bench.error
    assert f"hugepages-{kib}kB" in bench.error


def test_transparent_huge_pages_of_shared_memory_need_the_switch(bench: Bench) -> None:
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    if switch("shmem_enabled") != "never" or any("/dev/shm" in line and "huge=" in line for line in mounts):
        pytest.skip("shared memory may have huge pages here")
    bench.run({"storage.backing": "shm-thp"}, code=77)
    assert "shmem_enabled is never" in bench.error


@pytest.fixture
def thp() -> None:
    if switch("enabled") not in ("always", "madvise"):
        pytest.skip("transparent huge pages of private memory are switched off here")


def test_coverage_of_private_huge_pages_is_measured(bench: Bench, thp: None) -> None:
    result = bench.run({"storage.backing": "anon-thp", "parallel.table_mode": "private"})
    for rank in (0, 1):
        mapping = mapping_of(bench, rank)
        assert mapping["bytes"] % HUGE == 0
        assert mapping["rss_bytes"] == mapping["bytes"]
        huge = mapping["huge_pages"]
        assert huge["share"] == huge["anon_bytes"] / mapping["rss_bytes"]
        smaps = "".join(mapping["raw_smaps"])
        kib = int(smaps.split("AnonHugePages:")[1].split()[0])
        assert huge["anon_bytes"] == kib * 1024
    found = [one for one in result["warnings"] if one["code"] == "thp_not_covered"]
    least = min(mapping_of(bench, rank, "after_load")["huge_pages"]["share"] for rank in (0, 1))
    assert bool(found) == (least < 0.95)
    (entry,) = result["ledger"]
    assert entry["observed"]["backing_allocated_bytes"] == entry["backing_bytes"]


def test_huge_pages_that_were_not_obtained_are_a_finding(bench: Bench, thp: None) -> None:
    result = bench.run({"storage.backing": "anon-thp", "parallel.table_mode": "private"}, before=NO_HUGE_PAGES)
    (warning,) = [one for one in result["warnings"] if one["code"] == "thp_not_covered"]
    assert "storage.backing anon-thp asked for transparent huge pages, 0.0 %" in warning["text"]
    assert warning["figures"]["covered_share"] == 0
    assert mapping_of(bench, 0)["huge_pages"]["share"] == 0


def test_pinned_rounding_takes_what_a_caching_allocator_would(bench: Bench) -> None:
    private = {"storage.backing": "anon", "parallel.table_mode": "private"}
    (plain,) = bench.run(private)["ledger"]
    result = bench.run(private | {"storage.pinned_rounding": "power-of-two"})
    (entry,) = result["ledger"]
    assert entry["table_bytes_one_copy"] == plain["table_bytes_one_copy"]
    # Four arrays a rank: weights and scales of two layers.
    arrays = result["placement"]["snapshots"][-1]["backings"]
    assert len(arrays) == 2
    assert entry["table_bytes"] == entry["backing_bytes"] == sum(one["bytes"] for one in arrays)
    assert plain["backing_bytes"] < entry["backing_bytes"] <= 2 * plain["backing_bytes"]
    for table in arrays[0]["tables"]:
        assert table["bytes"].bit_count() == 2  # the sum of two powers of two
    assert entry["observed"]["backing_allocated_bytes"] == entry["backing_bytes"]
    assert entry["observed"]["pss_bytes"] == entry["backing_bytes"]


def test_pinned_rounding_is_of_private_memory(bench: Bench) -> None:
    bench.run({"storage.pinned_rounding": "power-of-two"}, code=2)
    assert "needs storage.backing anon or anon-thp, found shm" in bench.error


def registration(result: Any) -> list[Any]:
    (backing,) = result["startup"][0]["registration"]
    return list(backing["ranks"])


@pytest.mark.parametrize("order", ["serial", "leader-first"])
def test_whoever_registers_first_allocates_every_page(bench: Bench, order: str) -> None:
    settings = {"storage.policy": "stock", "storage.pretouch": "none", "storage.register": order}
    result = bench.run(settings)
    leader, peer = registration(result)
    (backing,) = result["placement"]["snapshots"][0]["backings"]
    assert leader["leader"] is True
    assert (leader["allocated_before_bytes"], leader["allocated_after_bytes"]) == (0, backing["bytes"])
    assert (peer["allocated_before_bytes"], peer["allocated_after_bytes"]) == (backing["bytes"], backing["bytes"])
    # The peer faults too: its page table is empty, though the pages are there.
    assert leader["minor_faults"] > 0
    assert peer["minor_faults"] > 0


def test_concurrent_registration_starts_on_an_empty_backing(bench: Bench) -> None:
    result = bench.run({"storage.policy": "stock", "storage.pretouch": "none", "storage.register": "concurrent"})
    (backing,) = result["placement"]["snapshots"][0]["backings"]
    ranks = registration(result)
    assert min(one["allocated_before_bytes"] for one in ranks) < backing["bytes"]
    assert all(one["allocated_after_bytes"] == backing["bytes"] for one in ranks)  # each faults the whole mapping
    assert all(one["minor_faults"] > 0 for one in ranks)


def test_after_pretouch_registration_allocates_nothing(bench: Bench) -> None:
    result = bench.run({"storage.pretouch": "leader"})
    for one in registration(result):
        assert one["allocated_before_bytes"] == one["allocated_after_bytes"]
    leader, peer = registration(result)
    assert leader["minor_faults"] < peer["minor_faults"]  # its page table was filled by the pre-touch


def test_private_memory_has_no_backing_to_measure(bench: Bench) -> None:
    result = bench.run({"storage.backing": "anon", "parallel.table_mode": "private"})
    for backing in result["startup"][0]["registration"]:
        (one,) = backing["ranks"]
        assert one["allocated_before_bytes"]["value"] is None
        assert "private" in one["allocated_before_bytes"]["reason"]
