"""A3 on two nodes of 1 GiB: one shared copy, a copy on each node, and one copy where its readers are; and weighted."""

from __future__ import annotations

from typing import Any

import pytest
from bench import PAGE, Bench, local_row_shares, pages, shmem_bytes, snapshots

ARMS = ("one", "per-numa-node", "consumer")
COPIES = {"one": 1, "per-numa-node": 2, "consumer": 1}  # times W


@pytest.fixture(scope="module")
def a3(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Bench]:
    """Four ranks: shard 0 is read by ranks 0 and 2, shard 1 by ranks 1 and 3. Some 40 MiB of tables."""
    bench = Bench(tmp_path_factory.mktemp("a3"))
    settings = {
        "model.table_scale": 0.0002,
        "storage.policy": "bind:0",
        "storage.bind_ranks": "device-local",
        "workload.steps": 2,
        "experiment.factor": "storage.copies",
        "experiment.arms": {"one": "one", "per-numa-node": "per-numa-node"},
        "experiment.joint_arms": {"consumer": {"storage.policy": "consumer", "device.rank_map": "shard-near"}},
        "experiment.controls": {"stock": {"storage.policy": "stock"}},
    }
    return bench.run(settings), bench


def backings(result: Any, arm: str) -> list[Any]:
    (found,) = [one for one in result["effective"] if one["arm"] == arm]
    return list(found["backings"])


def test_readers_are_grouped_by_the_node_of_their_device(a3: tuple[Any, Bench]) -> None:
    result = a3[0]
    assert [(one["node"], one["readers"]) for one in backings(result, "one")] == [(None, [0, 2]), (None, [1, 3])]
    copies = [(one["node"], one["leader"], one["readers"]) for one in backings(result, "per-numa-node")]
    assert copies == [(0, 0, [0]), (1, 2, [2]), (0, 1, [1]), (1, 3, [3])]
    # The map brings the readers of each shard to one node; the copy follows them.
    assert [(one["node"], one["readers"]) for one in backings(result, "consumer")] == [(0, [0, 2]), (1, [1, 3])]
    shards = {arm: [rank["shard"] for rank in one["ranks"]] for one in result["effective"] for arm in [one["arm"]]}
    assert shards["one"] == shards["per-numa-node"] == shards["consumer"] == [0, 1, 0, 1]
    assert [one["reader_nodes"] for one in backings(result, "one")] == [[0, 1], [0, 1]]
    groups = {one["arm"]: one["tp_group_nodes"] for one in result["effective"]}
    assert groups["one"] == [[0], [1]]  # a replica a node: its collectives stay there
    assert groups["consumer"] == [[0, 1], [0, 1]]  # near tables, and collectives that cross


@pytest.mark.parametrize("arm", ARMS)
def test_physical_bytes_are_the_ledgers_on_node_memory(a3: tuple[Any, Bench], arm: str) -> None:
    ledgers = [one for one in a3[0]["ledger"] if one["arm"] == arm]
    assert len(ledgers) == 1
    for ledger in ledgers:
        assert ledger["table_bytes"] == COPIES[arm] * ledger["table_bytes_one_copy"]
        observed = ledger["observed"]
        for figure in ("pss_bytes", "backing_allocated_bytes", "node_growth_bytes"):
            assert observed[figure] == pytest.approx(ledger["table_bytes"], rel=0.01), figure
        assert observed["backings_counted"] == 2 * COPIES[arm]
        assert all(abs(share) < 0.01 for share in ledger["deviation"].values())
    assert not [one for one in a3[0]["warnings"] if one["code"] == "ledger_disagrees"]


def test_one_lies_on_node_0_and_each_copy_on_its_own_node(a3: tuple[Any, Bench]) -> None:
    result = a3[0]
    assert [set(one) for one in pages(result, "one")] == [{0}] * 2  # two shards
    assert [set(one) for one in pages(result, "per-numa-node")] == [{0}, {1}, {0}, {1}]
    assert [set(one) for one in pages(result, "consumer")] == [{0}, {1}]
    for label in ("after_pretouch", "after_register", "after_load", "steady"):
        for snapshot in snapshots(result, "per-numa-node", label):
            assert [one["requested_policy"] for one in snapshot["backings"]] == ["bind:0", "bind:1"] * 2
            assert [one["policy"] for one in snapshot["backings"]] == ["bind:0", "bind:1"] * 2
            assert [one["observed_shares"] for one in snapshot["backings"]] == [{"0": 1.0}, {"1": 1.0}] * 2


def test_readers_read_their_own_copy_alone(a3: tuple[Any, Bench]) -> None:
    result, bench = a3
    assert local_row_shares(result, "per-numa-node") == [1.0] * 8  # four ranks, two layers
    assert local_row_shares(result, "consumer") == [1.0] * 8
    assert local_row_shares(result, "one") == [1.0] * 4 + [0.0] * 4
    for snapshot in snapshots(result, "per-numa-node"):
        identities = set()
        for rank, place in enumerate([0, 2, 1, 3]):  # the backing that the rank reads
            mapping = bench.rank_snapshot(snapshot["reroll"], "steady", rank)["mapping"]
            backing = snapshot["backings"][place]
            assert mapping["backing"]["inode"] == backing["identity"]["inode"]
            assert set(mapping["node_pages"]) == {str(rank // 2)}
            assert mapping["rss_bytes"] == mapping["pss_bytes"] == backing["bytes"]  # all of it, shared with nobody
            identities.add((mapping["backing"]["device"], mapping["backing"]["inode"]))
        assert len(identities) == 4


def test_pss_counts_a_copy_once_and_rss_once_a_reader(a3: tuple[Any, Bench]) -> None:
    result, bench = a3
    for arm in ARMS:
        snapshot = snapshots(result, arm)[0]
        table_bytes = sum(one["bytes"] for one in snapshot["backings"])
        mappings = [bench.rank_snapshot(snapshot["reroll"], "steady", rank)["mapping"] for rank in range(4)]
        assert sum(one["pss_bytes"] for one in mappings) == table_bytes
        assert sum(one["rss_bytes"] for one in mappings) == table_bytes * 2 // COPIES[arm]


def test_copies_hold_the_same_bytes(a3: tuple[Any, Bench]) -> None:
    for ledger in a3[0]["ledger"]:
        if ledger["arm"] != "per-numa-node":
            assert ledger["copies"] == []
            continue
        assert [(one["shard"], one["node"]) for one in ledger["copies"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        sums = [one["content_sha256"] for one in ledger["copies"]]
        assert sums[0] == sums[1] != sums[2] == sums[3]
    rows = {(one["arm"], one["when"]): one["rows_sha256"] for one in a3[0]["checks"]["slots"]}
    assert rows["one", "before_timing"] == rows["per-numa-node", "before_timing"] == rows["consumer", "before_timing"]


@pytest.mark.parametrize(("arm", "changes"), [("per-numa-node", 1), ("consumer", 2)])
def test_the_pages_moved_and_nothing_else_is_claimed(a3: tuple[Any, Bench], arm: str, changes: int) -> None:
    (comparison,) = [one for one in a3[0]["comparisons"] if one["arms"] == ["one", arm]]
    pages_link, *later = comparison["chain"]["links"]
    assert pages_link["status"] == "held"
    assert [one["status"] for one in later] == ["void"] * 3
    assert len(comparison["changes"]) == changes
    assert ("changes storage.policy and device.rank_map together" in comparison["text"]) == (changes == 2)
    assert "premature: A1/B1 evidence missing" in comparison["advice"]
    assert "collective_us.p50" in [one["metric"] for one in comparison["guards"]]
    (found,) = [one for one in a3[0]["arms"] if one["name"] == arm]
    assert found["provenance"]["kind"] == "research"


def test_a_copy_that_was_loaded_wrong_is_found(bench: Bench) -> None:
    settings = {
        "storage.policy": "bind:0",
        "storage.copies": "per-numa-node",
        "fault": {"kind": "corrupt", "stage": "during_load", "rank": 2},
    }
    bench.run(settings, code=5)
    assert "copies of shard 0 differ after the load" in bench.error
    assert "backing 1 on node 1 (leader rank 2)" in bench.error


def test_a_copy_has_several_readers_and_lives_as_long_as_they_do(bench: Bench) -> None:
    settings = {"parallel": {"tp": 1, "dp": 4}, "storage.policy": "interleave:0,1", "storage.copies": "per-numa-node"}
    result = bench.run({**settings, "storage.bind_ranks": "device-local"})
    assert [one["readers"] for one in backings(result, "A")] == [[0, 1], [2, 3]]
    assert [set(one) for one in pages(result)] == [{0}, {1}]
    assert local_row_shares(result, "A") == [1.0] * 8
    mappings = [bench.rank_snapshot(0, "steady", rank)["mapping"] for rank in range(4)]
    assert all(one["rss_bytes"] == 2 * one["pss_bytes"] for one in mappings)
    before = shmem_bytes()
    bench.run({**settings, "fault": {"kind": "kill", "stage": "in_step", "rank": 3}}, code=1)
    assert "rank 3 (dp 3, tp 0)" in bench.error
    assert "killed by signal 9" in bench.error
    # Both copies are gone with their readers.
    assert shmem_bytes() - before < sum(one["bytes"] for one in snapshots(result, "A")[0]["backings"]) // 4


def test_consumer_where_readers_are_on_several_nodes_is_refused(bench: Bench) -> None:
    bench.run({"storage.policy": "consumer"}, code=1)
    assert "the readers of shard 0 are on several NUMA nodes: node 0 (rank 0), node 1 (rank 2)" in bench.error


@pytest.mark.parametrize(
    ("policy", "shares", "pretouch"),
    [
        ("weighted:0=3,1=1", {0: 0.75, 1: 0.25}, "leader"),
        ("weighted:0=3,1=1", {0: 0.75, 1: 0.25}, "none"),
        ("weighted:0=1,1=2", {0: 1 / 3, 1: 2 / 3}, "leader"),
        ("weighted:1=5", {1: 1.0}, "leader"),
    ],
)
def test_weighted_shares_are_exact(bench: Bench, policy: str, shares: dict[int, float], pretouch: str) -> None:
    settings = {"storage.policy": policy, "storage.pretouch": pretouch, "storage.bind_ranks": "device-local"}
    result = bench.run({**settings, "parallel.tp": 1})  # a rank on each node reads the one table
    for label in ("after_register", "after_load", "steady"):
        for by_node in pages(result, label=label):
            total = sum(by_node.values())
            assert set(by_node) == set(shares)
            assert all(abs(by_node[node] - total * share) < 1 for node, share in shares.items()), by_node
    (snapshot,) = snapshots(result, "A")
    assert {int(k): v for k, v in snapshot["requested_shares"].items() if v > 0} == pytest.approx(shares)
    assert sum(one["bytes"] for one in snapshot["backings"]) % PAGE == 0
