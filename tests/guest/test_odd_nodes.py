"""Nodes of 1 GiB, 512 MiB and 256 MiB, the last without CPUs and nearer to node 0, as memory behind CXL is."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from bench import BINARY, Bench, pages, shmem_bytes, snapshots, within_one_page


def test_topo_shows_the_node_without_cpus() -> None:
    topology = json.loads(subprocess.run([BINARY, "topo", "--json"], capture_output=True, check=True).stdout)
    assert [(node["node"], node["cpus"]) for node in topology["nodes"]] == [(0, [0]), (1, [1]), (2, [])]


def test_a_node_without_cpus_takes_pages_but_no_ranks(bench: Bench) -> None:
    result = bench.run({"parallel.tp": 1, "storage.policy": "bind:2", "storage.bind_ranks": "device-local"})
    assert all(set(one) == {2} for one in pages(result))
    assert [one["cpus"] for one in snapshots(result, "A")[0]["ranks"]] == [[0], [1]]


def test_ranks_cannot_be_bound_to_a_node_without_cpus(bench: Bench) -> None:
    bench.run({"storage.bind_ranks": "2"}, code=1)
    assert "no CPU of NUMA node 2" in bench.error


def test_memory_is_bound_where_the_cpus_are_refused_and_that_is_allowed(bench: Bench) -> None:
    settings = {"storage.bind_ranks": "1", "parallel.tp": 1}
    only_0 = ("taskset", "-c", "0")
    bench.run(settings, code=1, before=only_0)
    assert "no CPU of NUMA node 1" in bench.error
    result = bench.run(settings, before=only_0, options=("--allow-degraded",))
    assert {one["task_policy"] for one in snapshots(result, "A")[0]["ranks"]} == {"bind:1"}
    lost = [one["figures"] for one in result["warnings"] if one["code"] == "binding_degraded"]
    assert [(one["rank"], one["part"]) for one in lost] == [(0, "CPUs"), (1, "CPUs")]


def test_no_copy_is_made_on_a_node_without_cpus(bench: Bench) -> None:
    """Two nodes have readers; one rank a node, or each reader of node 0 would be counted."""
    result = bench.run({"parallel.tp": 1, "storage.policy": "bind:0", "storage.copies": "per-numa-node"})
    assert [set(one) for one in pages(result)] == [{0}, {1}]


def test_interleave_all_takes_every_node_with_memory(bench: Bench) -> None:
    result = bench.run({"parallel.tp": 1, "storage.policy": "interleave:all"})
    assert all(within_one_page(one, [0, 1, 2]) for one in pages(result))


@pytest.mark.parametrize("tables", [{}, {"storage.backing": "anon", "parallel.table_mode": "private"}])
def test_a_bind_that_does_not_fit_its_node_is_refused_before_it_allocates(bench: Bench, tables: dict[str, str]) -> None:
    before = shmem_bytes()
    bench.run({"storage.policy": "bind:2", "model.table_scale": 0.002, **tables}, code=1)
    assert re.search(r"nodes? 2\b.*MiB", bench.error), bench.error
    assert "nothing was allocated" in bench.error
    assert shmem_bytes() - before < 1 << 20
    assert not any(Path("/dev/shm").iterdir())


def test_a_node_that_is_not_there_is_a_skip(bench: Bench) -> None:
    bench.run({"storage.policy": "bind:3"}, code=77)
    assert "NUMA nodes 0-2" in bench.error
