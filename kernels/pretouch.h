// Faulting the pages of a mapping: pre-touch by one or several threads, and what registration does to pages.
#pragma once

#include <cstddef>
#include <cstdint>

namespace eb::kernels {

// Makes every page of [address, address + bytes) present and writable, content kept: MADV_POPULATE_WRITE where the
// kernel has it (5.14), else a loop that rewrites a byte a page atomically with its own value. `threads` >= 1; each
// takes one contiguous part cut at 2 MiB. Errors: Error(failure) with the errno's text (ENOMEM, EFAULT: tmpfs full,
// ...).
void pretouch(std::byte* address, std::size_t bytes, int threads);

// True where MADV_POPULATE_WRITE works.
[[nodiscard]] bool has_populate_write() noexcept;

}  // namespace eb::kernels
