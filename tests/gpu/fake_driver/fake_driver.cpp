// libcuda.so.1 of a machine whose driver is too old, or has no device: just enough for CUDA's runtime to find that out.
// FAKE_CUDA_VERSION is the version it states (11080 = 11.8), FAKE_CUDA_INIT what cuInit answers.
#include <cstdlib>
#include <cstring>

namespace {

int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

constexpr int kNoDevice = 100;
constexpr int kNotFound = 500;

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = number("FAKE_CUDA_VERSION", 11080);
  return 0;
}
int cuInit(unsigned /*flags*/) { return number("FAKE_CUDA_INIT", kNoDevice); }
int cuDeviceGetCount(int* count) {
  *count = 0;
  return 0;
}
int cuGetProcAddress_v2(const char* symbol, void** function, int /*version*/, unsigned long long /*flags*/,
                        int* status) {
  *function = nullptr;
  if (std::strcmp(symbol, "cuDriverGetVersion") == 0) *function = reinterpret_cast<void*>(&cuDriverGetVersion);
  if (std::strcmp(symbol, "cuInit") == 0) *function = reinterpret_cast<void*>(&cuInit);
  if (std::strcmp(symbol, "cuDeviceGetCount") == 0) *function = reinterpret_cast<void*>(&cuDeviceGetCount);
  if (std::strcmp(symbol, "cuGetProcAddress") == 0) *function = reinterpret_cast<void*>(&cuGetProcAddress_v2);
  if (status != nullptr) *status = *function == nullptr ? 1 : 0;
  return *function == nullptr ? kNotFound : 0;
}
int cuGetProcAddress(const char* symbol, void** function, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}
}
