// Small pieces of the operating system that several folders need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "harness/base/unique_fd.h"

namespace eb {

// CLOCK_MONOTONIC in ns: one time base for all processes of a host.
[[nodiscard]] std::int64_t now_ns() noexcept;

// A memfd of `bytes` (zero filled, close-on-exec). Errors: Error(failure).
[[nodiscard]] UniqueFd make_memfd(const char* name, std::size_t bytes);

// The whole of a small file (/proc, /sys, scenario files), of `most` bytes or fewer. Errors: Error(failure) that names
// the path.
[[nodiscard]] std::string read_file(const std::string& path, std::size_t most = SIZE_MAX);

// Writes to `path` + ".tmp", syncs and renames, so that a reader sees the old file or the new one, never half of it.
// Errors: Error(failure) that names the path (a full disk, a read-only folder); the temporary file is removed.
void write_file_atomic(const std::string& path, std::span<const std::byte> bytes);
void write_file_atomic(const std::string& path, const std::string& text);

[[nodiscard]] std::size_t page_bytes() noexcept;

// The NUMA node of a PCI device ("0000:18:00.0") by sysfs. Virtual machines often state none: where the machine has one
// node alone it is that one, else -1. `root` stands before /sys, for tests.
[[nodiscard]] int pci_numa_node(const std::string& bus_id, const std::string& root = "");

}  // namespace eb
