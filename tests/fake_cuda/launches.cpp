// Kernels: what a library registers when it is loaded, and launches, of which only the time and the name remain. Also
// the handles of cuBLAS and cuDNN, whose computing functions count as one kernel each.
#include <cstring>
#include <map>
#include <unordered_map>

#include "fake.h"

namespace fake {

// The code of one source file for several architectures, as nvcc packs it. The layout is in no header; it is that of
// fatbinary sections as `cuobjdump` reads them: a header, then entries of which `kind` 1 is PTX, 2 machine code.
struct Binary {
    const char* code;
    bool usable = false, known = false;
};
struct Packed {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
};
struct Entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes;
    uint32_t compressed_bytes, options;
    uint16_t minor, major;
    uint32_t architecture;
};
constexpr uint32_t PACKED_MAGIC = 0xBA55ED50;

struct Kernel {
    std::string name;
    Binary* binary;
};
static std::unordered_map<const void*, Kernel>& kernels() {
    static auto* all = new std::unordered_map<const void*, Kernel>;
    return *all;
}

// Machine code runs on its architecture and on later ones of the same generation, PTX on all later ones (CUDA C++
// Programming Guide, "Application Compatibility").
static bool runs(Binary& binary) {
    if (binary.known) return binary.usable;
    binary.known = true;
    unsigned device = unsigned(setting("major") * 10 + setting("minor"));
    auto* packed = reinterpret_cast<const Packed*>(binary.code);
    if (packed->magic != PACKED_MAGIC) return binary.usable = true;
    const char* begin = binary.code + packed->header_bytes;
    for (const char* at = begin; at < begin + packed->bytes;) {
        auto* entry = reinterpret_cast<const Entry*>(at);
        bool later = entry->architecture <= device, related = entry->architecture / 10 == device / 10;
        binary.usable |= later && (entry->kind == 1 || related);
        at += entry->header_bytes + entry->bytes;
    }
    return binary.usable;
}

cudaError_t launch(const std::string& kernel, cudaStream_t stream) {
    if (auto error = check_device()) return error;
    spend_us("launch_host_us");
    Guard guard(lock());
    count("kernels", kernel);
    count_towards_loss();
    static auto* times = new std::map<std::pair<int, std::string>, Seconds>;
    auto known = times->try_emplace({current_device(), kernel}, -1).first;
    if (known->second < 0) known->second = kernel_time(kernel, current_device());
    submit_busy(stream_of(stream), known->second);
    return cudaSuccess;
}

static cudaError_t launch_registered(const void* function, cudaStream_t stream) {
    auto found = kernels().find(function);
    if (found == kernels().end()) return launch("unregistered", stream);
    if (!runs(*found->second.binary)) return failed(cudaErrorNoKernelImageForDevice);
    return launch(found->second.name, stream);
}

// 1 stands for any failure of a library; PyTorch then asks the runtime for its last error.
int compute(Handle* handle, const char* function) { return launch(function, cudaStream_t(handle->stream)) ? 1 : 0; }

int refuse(const char* function) {
    count("refused", function);
    return cudaErrorNotSupported;  // CUDA_ERROR_NOT_SUPPORTED has the same number
}

}  // namespace fake

using namespace fake;

// What nvcc's generated code calls (crt/host_runtime.h).
EXPORT void** __cudaRegisterFatBinary(void* wrapper) {
    struct Wrapper {
        int magic, version;
        const char* code;
    };
    return reinterpret_cast<void**>(new Binary{static_cast<Wrapper*>(wrapper)->code});
}
EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
EXPORT void __cudaUnregisterFatBinary(void**) {}
EXPORT void __cudaRegisterFunction(void** binary, const char* function, char*, const char* name, int, void*, void*,
                                   void*, void*, int*) {
    Guard guard(lock());
    kernels()[function] = {name, reinterpret_cast<Binary*>(binary)};
}
EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
EXPORT char __cudaInitModule(void**) { return 1; }

struct Configuration {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
};
static thread_local std::vector<Configuration> configurations;
EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
    configurations.push_back({grid, block, shared_bytes, stream});
    return 0;
}
EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
    auto& last = configurations.back();
    *grid = last.grid;
    *block = last.block;
    *shared_bytes = last.shared_bytes;
    *static_cast<cudaStream_t*>(stream) = last.stream;
    configurations.pop_back();
    return cudaSuccess;
}
// A kernel's handle is the address of its function.
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
    return cudaSuccess;
}
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t stream) {
    return launch_registered(kernel, stream);
}
EXPORT cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t stream) {
    return launch_registered(function, stream);
}
EXPORT cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t stream) {
    return launch_registered(function, stream);
}
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* function, void**) {
    return launch_registered(function, configuration->stream);
}
// Enough for every choice of a launch's shape that PyTorch makes from it.
EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->binaryVersion = attributes->ptxVersion = int(setting("major") * 10 + setting("minor"));
    attributes->maxDynamicSharedSizeBytes = int(setting("shared_bytes_per_block_at_most"));
    return cudaSuccess;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t,
                                                                          unsigned) {
    return *blocks = 2, cudaSuccess;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                                 size_t shared_bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, 0);
}
// A variable of a kernel's source: none is ever read.
EXPORT cudaError_t cudaGetSymbolAddress(void** address, const void*) {
    static char memory[1 << 20];
    *address = memory;
    return cudaSuccess;
}

// cuBLAS and cuDNN; what is not here, libraries.py makes by the patterns of their names. Integers stand for their
// types, whose headers hide the functions behind macros.
EXPORT int cublasLtMatmul(Handle*, void*, const void*, const void*, void*, const void*, void*, const void*, void*,
                          const void*, void*, void*, const void*, void*, size_t, cudaStream_t stream) {
    return launch("cublasLtMatmul", stream) ? 13 : 0;  // CUBLAS_STATUS_EXECUTION_FAILED
}
EXPORT int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* results,
                                          int* found) {
    memset(results, 0, 64);  // the first of them: no workspace, CUBLAS_STATUS_SUCCESS
    return *found = 1, 0;
}
EXPORT size_t cudnnGetVersion() { return size_t(setting("cudnn_version")); }
EXPORT size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
EXPORT const char* cudnnGetErrorString(int) { return "an error of cuDNN"; }
EXPORT const char* cudnnGetLastErrorString(char* text, size_t) { return text; }
EXPORT const char* cublasGetStatusString(int) { return "an error of cuBLAS"; }
EXPORT int cudnnGetStream(Handle* handle, cudaStream_t* stream) { return *stream = cudaStream_t(handle->stream), 0; }
// Batch norm needs no workspace here.
EXPORT int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void*, int, int, void*, void*, void*, void*, void*,
                                                                    size_t* bytes) {
    return *bytes = 0, 0;
}
EXPORT int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void*, int, int, void*, void*, void*, void*, void*, void*,
                                                             void*, size_t* bytes) {
    return *bytes = 0, 0;
}
EXPORT int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void*, int, int, void*, void*, size_t* bytes) {
    return *bytes = 0, 0;
}
EXPORT int cudnnBackendCreateDescriptor(int, void** descriptor) { return *descriptor = new Handle, 0; }
EXPORT int cudnnBackendDestroyDescriptor(void* descriptor) { return delete static_cast<Handle*>(descriptor), 0; }
// Whatever it is asked for, there is one, and it is zero: one engine, without a workspace.
EXPORT int cudnnBackendGetAttribute(void*, int, int type, int64_t wanted, int64_t* found, void* values) {
    constexpr int handle = 0, data_type = 1, boolean = 2, number = 3, real = 5, descriptor = 15;  // cudnn_graph.h
    (void)handle, (void)data_type, (void)boolean;
    if (found) *found = 1;
    if (wanted >= 1 && values && type != descriptor) memset(values, 0, type == number || type == real ? 8 : 4);
    return 0;
}
