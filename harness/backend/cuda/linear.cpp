#include "harness/backend/cuda/linear.h"

#include <bit>

#include "harness/backend/cuda/memory.h"

namespace eb::backend::cuda {

namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
constexpr std::size_t kMostCalls = 16'384;  // remembered; a step has about a hundred

void check_blas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(Exit::failure, "{}: {}", what, cublasLtGetStatusString(status));
}

class DeviceMatrix final : public Matrix {
 public:
  DeviceMatrix(std::span<const Bf16> values, std::int64_t n, std::int64_t k) : n_(n), k_(k) {
    if (static_cast<std::int64_t>(values.size()) != n * k) {
      fail(Exit::failure, "a {} x {} matrix of {} values", n, k, values.size());
    }
    data_ = allocate_device(values.size_bytes(), fmt::format("a {} x {} weight matrix", n, k));
    // From pageable memory cudaMemcpy returns once its staging buffer is full; the last piece may still be on its way.
    cudaError_t error = cudaMemcpy(data_, values.data(), values.size_bytes(), cudaMemcpyHostToDevice);
    if (error == cudaSuccess) error = cudaStreamSynchronize(nullptr);
    if (error != cudaSuccess) {
      free_device(data_, values.size_bytes());
      fail_cuda(error, "upload of a weight matrix");
    }
  }
  ~DeviceMatrix() override { free_device(data_, static_cast<std::size_t>(n_ * k_) * sizeof(Bf16)); }
  DeviceMatrix(const DeviceMatrix&) = delete;
  DeviceMatrix& operator=(const DeviceMatrix&) = delete;
  [[nodiscard]] std::int64_t n() const noexcept override { return n_; }
  [[nodiscard]] std::int64_t k() const noexcept override { return k_; }
  [[nodiscard]] const void* data() const noexcept { return data_; }

 private:
  std::int64_t n_;
  std::int64_t k_;
  void* data_ = nullptr;
};

}  // namespace

std::unique_ptr<Matrix> make_device_matrix(std::span<const Bf16> values, std::int64_t n, std::int64_t k) {
  return std::make_unique<DeviceMatrix>(values, n, k);
}

// Row-major y[m][n] = x[m][k] * w[n][k]^T is, column-major, y'[n x m] = w'[k x n]^T * x'[k x m].
struct Linear::Product {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t y = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  ~Product() {
    if (y != nullptr) cublasLtMatrixLayoutDestroy(y);
    if (x != nullptr) cublasLtMatrixLayoutDestroy(x);
    if (w != nullptr) cublasLtMatrixLayoutDestroy(w);
    if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
  }
};

Linear::Linear() {
  check_blas(cublasLtCreate(&handle_), "cublasLtCreate");
  if (const auto error = cudaMalloc(&workspace_, kWorkspaceBytes); error != cudaSuccess) {
    cublasLtDestroy(handle_);
    fail_cuda(error, "the matrix products' workspace");
  }
}

Linear::~Linear() {
  products_.clear();
  ignore(cudaFree(workspace_));
  cublasLtDestroy(handle_);
}

Linear::Product& Linear::product(const LinearArgs& args) {
  const std::int64_t n = args.w->n();
  const std::int64_t k = args.w->k();
  auto& kept = products_[Key{args.m, n, k, args.ldx, args.ldy, args.accumulate_scale != 0}];
  if (kept) return *kept;
  auto made = std::make_unique<Product>();
  check_blas(cublasLtMatmulDescCreate(&made->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  const cublasOperation_t transpose = CUBLAS_OP_T;
  check_blas(
      cublasLtMatmulDescSetAttribute(made->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose)),
      "transposed weights");
  check_blas(cublasLtMatrixLayoutCreate(&made->w, CUDA_R_16BF, static_cast<std::uint64_t>(k),
                                        static_cast<std::uint64_t>(n), k),
             "layout of w");
  check_blas(cublasLtMatrixLayoutCreate(&made->x, CUDA_R_16BF, static_cast<std::uint64_t>(k),
                                        static_cast<std::uint64_t>(args.m), args.ldx),
             "layout of x");
  check_blas(cublasLtMatrixLayoutCreate(&made->y, CUDA_R_16BF, static_cast<std::uint64_t>(n),
                                        static_cast<std::uint64_t>(args.m), args.ldy),
             "layout of y");
  cublasLtMatmulPreference_t preference = nullptr;
  check_blas(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const std::size_t workspace = kWorkspaceBytes;
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                       sizeof(workspace));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, made->operation, made->w, made->x, made->y,
                                                               made->y, preference, 1, &found, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    fail(Exit::failure, "cuBLASLt has no algorithm for m {} n {} k {} (ldx {}, ldy {}): {}", args.m, n, k, args.ldx,
         args.ldy, cublasLtGetStatusString(status));
  }
  made->algorithm = found.algo;
  kept = std::move(made);
  return *kept;
}

void Linear::enqueue(const Product& kept, const LinearArgs& args, const void* w, cudaStream_t stream) {
  const float alpha = args.accumulate_scale != 0 ? args.accumulate_scale : 1.0F;
  const float beta = args.accumulate_scale != 0 ? 1.0F : 0.0F;
  check_blas(cublasLtMatmul(handle_, kept.operation, &alpha, w, kept.w, args.x, kept.x, &beta, args.y, kept.y, args.y,
                            kept.y, &kept.algorithm, workspace_, kWorkspaceBytes, stream),
             "cublasLtMatmul");
}

std::size_t Linear::CallHash::operator()(const Call& call) const noexcept {
  std::uint64_t hash = 0;
  for (const std::uint64_t part :
       {reinterpret_cast<std::uint64_t>(call.x), reinterpret_cast<std::uint64_t>(call.w),
        reinterpret_cast<std::uint64_t>(call.y), static_cast<std::uint64_t>(call.m), std::uint64_t{call.scale_bits}}) {
    hash = (hash ^ part) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 29;
  }
  return hash;
}

Linear::Known Linear::capture(const Product& kept, const LinearArgs& args, const void* w) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(counting_.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  enqueue(kept, args, w, counting_.get());
  check(cudaStreamEndCapture(counting_.get(), &graph), "cudaStreamEndCapture");
  std::size_t nodes = 0;
  if (const cudaError_t error = cudaGraphGetNodes(graph, nullptr, &nodes); error != cudaSuccess) {
    ignore(cudaGraphDestroy(graph));
    fail_cuda(error, "cudaGraphGetNodes");
  }
  return {static_cast<std::int64_t>(nodes), LaunchList::from(graph)};
}

std::int64_t Linear::run(const LinearArgs& args, cudaStream_t stream) {
  if (args.m == 0) return 0;
  const auto* w = dynamic_cast<const DeviceMatrix*>(args.w);
  if (w == nullptr) fail(Exit::failure, "linear: the matrix is not this backend's");
  const Call call{
      args.x, w->data(), args.y, args.m, args.ldx, args.ldy, std::bit_cast<std::uint32_t>(args.accumulate_scale)};
  if (const auto found = calls_.find(call); found != calls_.end()) {
    const Known& known = found->second;
    if (!known.launches) {
      enqueue(product(args), args, w->data(), stream);
    } else if (const CUresult result = known.launches->launch(stream); result != CUDA_SUCCESS) {
      fail(Exit::failure, "product {} x {} x {}: launch: CUDA driver error {}", args.m, args.w->n(), args.w->k(),
           static_cast<int>(result));
    }
    return known.kernels;
  }
  const Product& kept = product(args);
  enqueue(kept, args, w->data(), stream);
  if (calls_.size() >= kMostCalls) calls_.clear();  // batches of ever other sizes
  return calls_.emplace(call, capture(kept, args, w->data())).first->second.kernels;
}

}  // namespace eb::backend::cuda
