"""Two nodes of 1 GiB with one CPU each: what the kernel does with pages, asked of a kernel that has two nodes."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from bench import BINARY, ROOT, Bench, local_row_shares, pages, refusing, snapshots, within_one_page

MBIND, SET_MEMPOLICY, MOVE_PAGES = 237, 238, 279  # x86-64


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Bench]:
    """A1 (near against far), A2 (concentrated against interleaved) and the stock control, in one experiment."""
    bench = Bench(tmp_path_factory.mktemp("policies"))
    settings = {
        "storage.bind_ranks": "device-local",
        "experiment.factor": "storage.policy",
        "experiment.arms": {"A": "bind:0", "B": "bind:1", "I": "interleave:0,1", "P": "preferred:1"},
        "experiment.controls": {"stock": {"storage.policy": "stock"}},
    }
    return bench.run(settings), bench


def test_the_guest_has_two_nodes_at_the_distance_asked_for() -> None:
    topology = json.loads(subprocess.run([BINARY, "topo", "--json"], capture_output=True, check=True).stdout)
    assert [node["node"] for node in topology["nodes"]] == [0, 1]
    distances = Path("/sys/devices/system/node/node0/distance").read_text().split()
    assert distances == ["10", "21"]


@pytest.mark.parametrize(("arm", "node"), [("A", 0), ("B", 1)])
def test_bind_puts_every_page_on_its_node(policies: tuple[Any, Bench], arm: str, node: int) -> None:
    for label in ("after_register", "after_load", "steady"):
        found = pages(policies[0], arm, label)
        assert len(found) == 2  # shards
        assert all(set(one) == {node} for one in found)


def test_interleave_is_within_one_page_of_equal_shares(policies: tuple[Any, Bench]) -> None:
    assert all(within_one_page(one, [0, 1]) for one in pages(policies[0], "I"))


def test_preferred_lies_where_it_is_preferred_while_there_is_room(policies: tuple[Any, Bench]) -> None:
    assert all(set(one) == {1} for one in pages(policies[0], "P"))
    assert all(one["requested_shares"]["value"] is None for one in snapshots(policies[0], "P"))


def test_the_control_stock_is_left_to_the_readers_of_both_nodes(policies: tuple[Any, Bench]) -> None:
    found = pages(policies[0], "stock")
    assert sum(one.get(0, 0) for one in found) > 0
    assert sum(one.get(1, 0) for one in found) > 0


def test_the_object_policy_is_not_the_task_policy(policies: tuple[Any, Bench]) -> None:
    """Ranks bound to either node, pages where the object says: bind:1 also where a rank of node 0 touched them."""
    leader = policies[1].rank_snapshot(reroll_of(policies[0], "B"), "steady", 0)
    assert leader["rank_state"]["task_policy"] == "bind:0"
    assert leader["rank_state"]["cpus"] == [0]
    assert leader["mapping"]["policy"] == "bind:1"
    assert set(leader["mapping"]["node_pages"]) == {"1"}


def test_a_run_can_be_kept_in_the_folder_that_the_host_sees() -> None:
    """9p knows no fallocate."""
    bench = Bench(Path(tempfile.mkdtemp(prefix="kept-", dir=os.environ["ENGRAM_BENCH_GUEST_OUT"])))
    assert bench.run({"parallel.tp": 1, "storage.policy": "bind:1"})["complete"] is True


def reroll_of(result: Any, arm: str) -> int:
    return int(snapshots(result, arm)[0]["reroll"])


def test_pss_counts_a_shared_page_once_and_rss_once_a_reader(policies: tuple[Any, Bench]) -> None:
    result, bench = policies
    table_bytes = sum(one["bytes"] for one in snapshots(result, "A")[0]["backings"])
    mappings = [bench.rank_snapshot(reroll_of(result, "A"), "steady", rank)["mapping"] for rank in range(4)]
    assert sum(one["rss_bytes"] for one in mappings) == 2 * table_bytes
    assert sum(one["pss_bytes"] for one in mappings) == table_bytes
    backings = {(one["backing"]["device"], one["backing"]["inode"]): one["backing"] for one in mappings}
    assert sum(one["allocated_bytes"] for one in backings.values()) == table_bytes


@pytest.mark.parametrize("arm", ["B", "I"])  # A1 and A2
def test_only_the_pages_are_judged_where_time_is_emulated(policies: tuple[Any, Bench], arm: str) -> None:
    result = policies[0]
    assert result["evidence"]["conditions"]["emulated_time"] is True
    (comparison,) = [one for one in result["comparisons"] if one["arms"] == ["A", arm]]
    pages_link, *later = comparison["chain"]["links"]
    assert pages_link["status"] == "held"
    assert pages_link["claimed"] is True
    assert [one["status"] for one in later] == ["void"] * 3
    assert all("emulated_time" in one["text"] for one in later)
    assert not any(one["claimed"] for one in later)


def test_ranks_are_near_and_far_by_the_node_of_their_device(policies: tuple[Any, Bench]) -> None:
    ranks = policies[0]["evidence"]["pages"]["ranks"]
    assert [one["device_node"] for one in ranks] == [0, 0, 1, 1]
    assert [one["locality"]["A"] for one in ranks] == ["near", "near", "far", "far"]
    assert [one["locality"]["B"] for one in ranks] == ["far", "far", "near", "near"]
    assert [one["locality"]["I"] for one in ranks] == ["mixed"] * 4


def test_local_row_share_follows_the_pages(policies: tuple[Any, Bench]) -> None:
    result = policies[0]
    # Ranks 0 and 1 have their device on node 0, ranks 2 and 3 on node 1; two layers each.
    assert local_row_shares(result, "A") == [1.0] * 4 + [0.0] * 4
    assert local_row_shares(result, "B") == [0.0] * 4 + [1.0] * 4
    assert all(0.0 < share < 1.0 for share in local_row_shares(result, "I"))


# One backing, read by two ranks: the leader (rank 0) and one peer. Nobody sets a policy; who faults a page places it.
@pytest.mark.parametrize(
    ("nodes", "order", "expected"),
    [
        ("0", "concurrent", {0}),
        ("1", "concurrent", {1}),
        ("0,1", "serial", {0}),
        ("1,0", "leader-first", {1}),
        ("0,1", "concurrent", {0, 1}),
        ("1,0", "concurrent", {0, 1}),
    ],
)
def test_whose_fault_places_stock_pages(bench: Bench, nodes: str, order: str, expected: set[int]) -> None:
    settings = {
        "parallel.tp": 1,
        "model.table_scale": 0.0002 if len(expected) == 2 else 0.00001,  # long enough for both to find empty pages
        "storage.policy": "stock",
        "storage.pretouch": "none",
        "storage.register": order,
        "storage.bind_ranks": nodes,
    }
    result = bench.run(settings)
    (found,) = pages(result, "A", "after_register")
    assert set(found) == expected, found
    states = snapshots(result, "A")[0]["ranks"]
    of_rank = [nodes[0], nodes[-1]]
    assert [one["task_policy"] for one in states] == [f"bind:{node}" for node in of_rank]
    assert [one["cpus"] for one in states] == [[int(node)] for node in of_rank]


@pytest.mark.parametrize(
    ("rank_map", "nodes"), [([1, 0, 1, 0], [1, 0, 1, 0]), ("shard-near", [0, 1, 0, 1])]
)  # ranks 0 and 2 read shard 0, ranks 1 and 3 shard 1
def test_the_rank_map_gives_ranks_their_nodes(bench: Bench, rank_map: Any, nodes: list[int]) -> None:
    result = bench.run({"device.rank_map": rank_map, "storage.bind_ranks": "device-local", "storage.policy": "bind:0"})
    assert [one["cpus"] for one in snapshots(result, "A")[0]["ranks"]] == [[node] for node in nodes]
    assert local_row_shares(result, "A") == [float(node == 0) for node in nodes for _ in range(2)]


def test_without_an_object_policy_the_tasks_own_decides(bench: Bench) -> None:
    (found,) = pages(bench.run({"parallel.tp": 1}, before=("numactl", "--membind=1")))
    assert set(found) == {1}


def test_an_object_policy_goes_before_the_tasks_own(bench: Bench) -> None:
    (found,) = pages(bench.run({"parallel.tp": 1, "storage.policy": "bind:0"}, before=("numactl", "--membind=1")))
    assert set(found) == {0}


def test_the_policy_of_the_mount_is_the_objects_until_another_is_set(bench: Bench) -> None:
    # A mount of its own: a remount with mpol=default does not take a policy away again.
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mpol=bind:1", "shm", "/dev/shm"], check=True)
    try:
        (found,) = pages(bench.run({"parallel.tp": 1, "storage.bind_ranks": "0"}))
        assert set(found) == {1}
        (found,) = pages(bench.run({"parallel.tp": 1, "storage.policy": "bind:0"}))
        assert set(found) == {0}
    finally:
        subprocess.run(["umount", "/dev/shm"], check=True)


@pytest.fixture
def only_node_0() -> Any:
    """A command prefix: in a control group whose cpuset has the memory of node 0 alone."""
    Path("/sys/fs/cgroup/cgroup.subtree_control").write_text("+cpuset")
    group = Path("/sys/fs/cgroup/only-0")
    group.mkdir(exist_ok=True)
    (group / "cpuset.mems").write_text("0")
    return ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")


def test_a_node_that_the_cpuset_does_not_allow_is_refused(bench: Bench, only_node_0: tuple[str, ...]) -> None:
    bench.run({"storage.policy": "bind:1"}, code=1, before=only_node_0)
    assert "cpuset.mems allows 0" in bench.error


def test_interleave_all_means_the_allowed_nodes(bench: Bench, only_node_0: tuple[str, ...]) -> None:
    found = pages(bench.run({"parallel.tp": 1, "storage.policy": "interleave:all"}, before=only_node_0))
    assert all(set(one) == {0} for one in found)


def test_a_container_that_refuses_mbind_is_named(bench: Bench) -> None:
    bench.run({"storage.policy": "bind:1"}, code=1, before=refusing(MBIND))
    assert "mbind" in bench.error
    assert "Operation not permitted" in bench.error
    assert "seccomp" in bench.error


def test_a_refused_policy_is_recorded_where_that_is_allowed(bench: Bench) -> None:
    """Nor can pages be asked one by one; what is left to judge them by is numa_maps."""
    settings = {"parallel.tp": 1, "storage.bind_ranks": 0, "storage.policy": "weighted:0=1,1=3"}
    result = bench.run(settings, before=refusing(MBIND, MOVE_PAGES), options=("--allow-degraded",))
    (backing,) = snapshots(result, "A")[0]["backings"]
    assert backing["observed_shares"] == {"0": 1.0}
    degraded = [one["text"] for one in result["warnings"] if one["code"] == "placement_degraded"]
    assert any("rank 0: storage.policy was not set" in one and "mbind" in one for one in degraded)
    assert any("asked for and not obtained" in one for one in degraded)
    (unqueried,) = [one["text"] for one in result["warnings"] if one["code"] == "pages_not_queried"]
    assert "rank 0, 1: move_pages" in unqueried
    assert "Operation not permitted" in unqueried
    lookups = [one for rank in result["arms"][0]["work_per_rank"] for one in rank["lookups"]]
    assert lookups
    for one in lookups:
        assert one["local_row_share"]["value"] is None
        assert "move_pages" in one["local_row_share"]["reason"]


def test_a_lost_binding_is_a_failure_unless_it_is_allowed(bench: Bench) -> None:
    settings = {"parallel.tp": 1, "storage.bind_ranks": "1", "storage.policy": "bind:1"}
    bench.run(settings, code=1, before=refusing(SET_MEMPOLICY))
    assert "binding_degraded" in bench.error
    assert "memory policy bind:1: set_mempolicy: Operation not permitted" in bench.error
    result = bench.run(settings, before=refusing(SET_MEMPOLICY), options=("--allow-degraded",))
    lost = [one for one in result["warnings"] if one["code"] == "binding_degraded"]
    assert [one["figures"]["rank"] for one in lost] == [0, 1]
    states = snapshots(result, "A")[0]["ranks"]
    assert [one["cpus"] for one in states] == [[1], [1]]  # the other part holds
    assert [one["task_policy"] for one in states] == ["default"] * 2


@pytest.mark.parametrize("program", ["placement", "collectors"])
def test_unit_tests_pass_on_two_nodes(program: str) -> None:
    path = ROOT / "build" / "tests" / "unit" / program / f"{program}_test"
    if not path.exists():
        pytest.skip(f"{path} is not built")
    # On node 0: some of them expect their own pages there.
    command = ["numactl", "--cpunodebind=0", str(path), "--gtest_brief=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
