// Faulting the pages of a mapping: pre-touch by one or several threads, and what registration does to pages.
#pragma once

#include <cstddef>
#include <cstdint>

namespace eb::kernels {

// Makes every page of [address, address + bytes) present and writable, content kept: MADV_POPULATE_WRITE where the
// kernel has it (5.14), else a loop that rewrites a byte a page atomically with its own value. `threads` >= 1; each
// takes one contiguous part cut at a multiple of `cut` (a power of two; at least 2 MiB is taken), so that no huge page
// is faulted by two threads. Errors: Error(failure) with the errno's text (ENOMEM, EFAULT: tmpfs full,
// ...), of the first part that failed. `address` is a page's.
void pretouch(std::byte* address, std::size_t bytes, int threads, std::size_t cut = 0);

// How pages are faulted. `rewrite` ends in SIGBUS where the memory behind a shared mapping is used up; populate_write
// reports it.
enum class TouchMethod { populate_write, rewrite };
void pretouch(std::byte* address, std::size_t bytes, int threads, TouchMethod method, std::size_t cut = 0);

// True where MADV_POPULATE_WRITE works.
[[nodiscard]] bool has_populate_write() noexcept;

}  // namespace eb::kernels
