// A profiler's side of NVTX, loaded into a process by NVTX_INJECTION64_PATH: writes what it is told to the file
// ENGRAM_BENCH_NVTX_RECORD.<pid>, a line a call:
//   domain <number> <name>     category <domain> <id> <name>     push <domain> <category> <text>     pop <domain>
// A process that makes no NVTX call never loads it and leaves no file.
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

namespace {

std::FILE* record = nullptr;
std::mutex mutex;
std::uintptr_t domains = 0;

// NVTX's callbacks carry a handle of the tool's own making: here the number of the domain.
nvtxDomainHandle_t create_domain(const char* name) {
  const std::lock_guard lock(mutex);
  std::fprintf(record, "domain %zu %s\n", ++domains, name);
  return reinterpret_cast<nvtxDomainHandle_t>(domains);
}

std::uintptr_t number(nvtxDomainHandle_t domain) { return reinterpret_cast<std::uintptr_t>(domain); }

void name_category(nvtxDomainHandle_t domain, std::uint32_t category, const char* name) {
  const std::lock_guard lock(mutex);
  std::fprintf(record, "category %zu %u %s\n", number(domain), category, name);
}

int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  const std::lock_guard lock(mutex);
  const bool text = attributes->messageType == NVTX_MESSAGE_TYPE_ASCII;
  std::fprintf(record, "push %zu %u %s\n", number(domain), attributes->category,
               text ? attributes->message.ascii : "?");
  return 0;
}

int pop(nvtxDomainHandle_t domain) {
  const std::lock_guard lock(mutex);
  std::fprintf(record, "pop %zu\n", number(domain));
  std::fflush(record);
  return 0;
}

template <typename Function>
void subscribe(NvtxFunctionTable table, int id, Function function) {
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

// The name that NVTX's header looks for.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table) {
  const char* path = std::getenv("ENGRAM_BENCH_NVTX_RECORD");
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  if (path == nullptr || callbacks == nullptr) return 0;
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  record = std::fopen((std::string(path) + "." + std::to_string(::getpid())).c_str(), "w");
  if (record == nullptr || size <= NVTX_CBID_CORE2_DomainCreateA) return 0;
  subscribe(table, NVTX_CBID_CORE2_DomainCreateA, &create_domain);
  subscribe(table, NVTX_CBID_CORE2_DomainNameCategoryA, &name_category);
  subscribe(table, NVTX_CBID_CORE2_DomainRangePushEx, &push);
  subscribe(table, NVTX_CBID_CORE2_DomainRangePop, &pop);
  return 1;
}
