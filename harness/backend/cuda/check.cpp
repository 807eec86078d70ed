#include "harness/backend/cuda/check.h"

namespace eb::backend::cuda {

namespace {

const char* remedy(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "; out of memory: use a smaller model.table_scale or batch, or see which process fills the device "
             "(nvidia-smi)";
    case cudaErrorInsufficientDriver:
      return "; the driver is older than this program's CUDA runtime: update the driver";
    case cudaErrorNoDevice:
      return "; no device is visible: see CUDA_VISIBLE_DEVICES and nvidia-smi";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "; the mapping is registered already by this process";
    case cudaErrorNotSupported:
      return "; this platform does not register such memory";
    case cudaErrorDevicesUnavailable:
      return "; the device is in use by another process in exclusive mode";
    default:
      return "";
  }
}

}  // namespace

void fail_cuda(cudaError_t error, const std::string& what) {
  cudaGetLastError();  // an error that is reported must not come up again in an unrelated check
  fail(Exit::failure, "{}: {} ({}){}", what, cudaGetErrorName(error), cudaGetErrorString(error), remedy(error));
}

}  // namespace eb::backend::cuda
