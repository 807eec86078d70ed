#!/usr/bin/env python3
"""Writes the machines of this folder in hwloc's XML, made up by hand: no real machine was read.

two-socket-8gpu.xml  two sockets, one NUMA node each, four NVIDIA GPUs a socket, a network card a socket; huge pages on
                     node 1 alone
nps4-8gpu.xml        two sockets, four NUMA nodes each (NPS4), one GPU a node, SLIT 10 / 12 / 32
two-socket-cxl.xml   two sockets, one NUMA node each, and node 2 of memory alone behind socket 0 (CXL), with the
                     cpuset of that socket, as hwloc gives it
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


def mask(bits: Iterable[int]) -> str:
    """A bitmap in hwloc's text form: 32 bits a word, the highest word first."""
    value = sum(1 << bit for bit in bits)
    words: list[int] = []
    while value or not words:
        words.append(value & 0xFFFFFFFF)
        value >>= 32
    return ",".join(f"0x{word:08x}" for word in reversed(words))


@dataclass
class Card:
    kind: str  # PCI class
    ids: str  # vendor:device
    vendor: str
    model: str


GPU = Card("0302", "10de:2335", "NVIDIA Corporation", "GH100 [H200 SXM 141GB]")
NETWORK_CARD = Card("0207", "15b3:1021", "Mellanox Technologies", "MT2910 [ConnectX-7]")
POOL_SIZES = (2 << 20, 1 << 30)
LINK_GB_PER_S = "63.015385"  # PCIe 5.0 x16


class Machine:
    def __init__(
        self,
        sockets: int,
        nodes_a_socket: int,
        cores_a_node: int,
        gpus_a_node: list[int],
        near: int,
        far: int,
        pools: dict[int, dict[int, int]],
        memory_only: bool = False,
    ) -> None:
        self.sockets = sockets
        self.nodes_a_socket = nodes_a_socket
        self.cores_a_node = cores_a_node
        self.gpus_a_node = gpus_a_node  # for each node of a socket
        self.near = near
        self.far = far
        self.pools = pools  # by node: pages by page size
        self.memory_only = memory_only  # the last node is one without CPUs, behind socket 0
        self.gp = 0
        self.lines: list[str] = []

    def next_gp(self) -> int:
        self.gp += 1
        return self.gp

    def sets(self, cpus: range, nodes: Iterable[int]) -> str:
        return (
            f'cpuset="{mask(cpus)}" complete_cpuset="{mask(cpus)}" '
            f'nodeset="{mask(nodes)}" complete_nodeset="{mask(nodes)}" gp_index="{self.next_gp()}"'
        )

    def add(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)

    def pci(self, depth: int, bus: int, card: Card) -> None:
        self.add(
            depth,
            f'<object type="PCIDev" gp_index="{self.next_gp()}" pci_busid="0000:{bus:02x}:00.0" '
            f'pci_type="{card.kind} [{card.ids}] [{card.ids}] a1" pci_link_speed="{LINK_GB_PER_S}">',
        )
        self.add(depth + 1, f'<info name="PCIVendor" value="{card.vendor}"/>')
        self.add(depth + 1, f'<info name="PCIDevice" value="{card.model}"/>')
        self.add(depth, "</object>")

    def io(self, depth: int, node: int, gpus: int, network: bool) -> None:
        """One host bridge of a node with its devices, each behind its own bridge."""
        first = 0x10 + node * 0x20
        count = gpus + (1 if network else 0)
        if count == 0:
            return
        buses = f"[{first:02x}-{first + count:02x}]"
        bridge = f'bridge_type="0-1" depth="0" bridge_pci="0000:{buses}"'
        self.add(depth, f'<object type="Bridge" gp_index="{self.next_gp()}" {bridge}>')
        for i in range(gpus):
            self.pci(depth + 1, first + 1 + i, GPU)
        if network:
            self.pci(depth + 1, first + count, NETWORK_CARD)
        self.add(depth, "</object>")

    def numa_node(self, depth: int, node: int, cpus: range) -> None:
        self.add(
            depth,
            f'<object type="NUMANode" os_index="{node}" {self.sets(cpus, range(node, node + 1))} '
            f'local_memory="{(1 << 40) // (self.sockets * self.nodes_a_socket)}">',
        )
        memory = (1 << 40) // (self.sockets * self.nodes_a_socket)
        pools = self.pools.get(node, {size: 0 for size in POOL_SIZES})
        small = memory - sum(size * count for size, count in pools.items())
        for size, count in {4096: small // 4096, **pools}.items():
            self.add(depth + 1, f'<page_type size="{size}" count="{count}"/>')
        self.add(depth, "</object>")

    def node(self, depth: int, node: int) -> None:
        cpus = range(node * self.cores_a_node, (node + 1) * self.cores_a_node)
        self.numa_node(depth, node, cpus)
        for cpu in cpus:
            one = range(cpu, cpu + 1)
            self.add(depth, f'<object type="Core" os_index="{cpu}" {self.sets(one, range(node, node + 1))}>')
            self.add(depth + 1, f'<object type="PU" os_index="{cpu}" {self.sets(one, range(node, node + 1))}/>')
            self.add(depth, "</object>")

    def xml(self) -> str:
        with_cpus = self.sockets * self.nodes_a_socket
        node_count = with_cpus + (1 if self.memory_only else 0)
        cpus, nodes = range(with_cpus * self.cores_a_node), range(node_count)
        self.add(0, '<?xml version="1.0" encoding="UTF-8"?>')
        self.add(0, '<!DOCTYPE topology SYSTEM "hwloc2.dtd">')
        self.add(0, '<topology version="2.0">')
        allowed = f'allowed_cpuset="{mask(cpus)}" allowed_nodeset="{mask(nodes)}"'
        self.add(1, f'<object type="Machine" os_index="0" {allowed} {self.sets(cpus, nodes)}>')
        self.add(2, '<info name="OSName" value="Linux"/>')
        for socket in range(self.sockets):
            first = socket * self.nodes_a_socket
            inside = range(first, first + self.nodes_a_socket)
            attached = [with_cpus] if self.memory_only and socket == 0 else []
            cores = range(first * self.cores_a_node, (first + self.nodes_a_socket) * self.cores_a_node)
            self.add(2, f'<object type="Package" os_index="{socket}" {self.sets(cores, [*inside, *attached])}>')
            for node in attached:
                self.numa_node(3, node, cores)
            for place, node in enumerate(inside):
                depth = 3
                if self.nodes_a_socket > 1:
                    own = range(node * self.cores_a_node, (node + 1) * self.cores_a_node)
                    self.add(3, f'<object type="Group" {self.sets(own, range(node, node + 1))} kind="0" subkind="0">')
                    depth = 4
                self.node(depth, node)
                self.io(depth, node, self.gpus_a_node[place], network=place == 0)
                if self.nodes_a_socket > 1:
                    self.add(3, "</object>")
            self.add(2, "</object>")
        self.add(1, "</object>")
        self.distances(node_count)
        self.add(0, "</topology>")
        return "\n".join(self.lines) + "\n"

    def distances(self, node_count: int) -> None:
        def value(a: int, b: int) -> int:
            if a == b:
                return 10
            if max(a, b) >= self.sockets * self.nodes_a_socket:  # behind socket 0
                return self.far + (10 if min(a, b) < self.nodes_a_socket else 12)
            return self.near if a // self.nodes_a_socket == b // self.nodes_a_socket else self.far

        indexes = "".join(f"{node} " for node in range(node_count))
        values = "".join(f"{value(a, b)} " for a in range(node_count) for b in range(node_count))
        # kind 5: latencies from the operating system
        self.add(1, f'<distances2 type="NUMANode" nbobjs="{node_count}" kind="5" name="NUMALatency" indexing="os">')
        self.add(2, f'<indexes length="{len(indexes)}">{indexes}</indexes>')
        self.add(2, f'<u64values length="{len(values)}">{values}</u64values>')
        self.add(1, "</distances2>")


def main() -> int:
    folder = Path(__file__).parent
    machines = {
        "two-socket-8gpu.xml": Machine(2, 1, 8, [4], 10, 21, {1: {2 << 20: 1024, 1 << 30: 200}}),
        "nps4-8gpu.xml": Machine(2, 4, 4, [1, 1, 1, 1], 12, 32, {}),
        "two-socket-cxl.xml": Machine(2, 1, 4, [0], 10, 21, {}, memory_only=True),
    }
    for name, machine in machines.items():
        (folder / name).write_text(machine.xml())
    return 0


if __name__ == "__main__":
    sys.exit(main())
