// Kernels: what a library registers when it is loaded, and launches, of which only the time and the name remain.
// Also the handles of cuBLAS and cuDNN, whose computing functions count as one kernel each.
#include <unordered_map>

#include "fake.h"

static auto& names = *new std::unordered_map<const void*, const char*>;  // by the function that is made for each

cudaError_t launch(const std::string& kernel, cudaStream_t stream) {
    return call_device("launch_host_us", [&] {
        count("kernels", kernel);
        launches++;
        submit(stream_of(stream), kernel_time(kernel));
    });
}

// 1 stands for any failure of a library; PyTorch then asks the runtime for its last error.
int compute(Handle* handle, const char* function) { return launch(function, cudaStream_t(handle->stream)) ? 1 : 0; }
int refuse(const char* function) {
    count("refused", function);
    return cudaErrorNotSupported;  // CUDA_ERROR_NOT_SUPPORTED has the same number
}

// What nvcc's generated code calls (crt/host_runtime.h).
EXPORT void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*, void*, void*,
                                   void*, int*) {
    names[function] = name;
}

// Of a launch's configuration only the stream counts.
static thread_local cudaStream_t pushed;
EXPORT unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t stream) { return pushed = stream, 0; }
EXPORT cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, cudaStream_t* stream) {
    *stream = pushed;
    return cudaSuccess;
}

// A kernel's handle is the address of its function.
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    return hand_out(kernel, const_cast<void*>(function));
}

EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t stream) {
    return launch(names.at(kernel), stream);
}

// Enough for every choice of a launch's shape that PyTorch makes from it.
EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->binaryVersion = attributes->ptxVersion = int(setting("major") * 10 + setting("minor"));
    return cudaSuccess;
}

// cuBLAS and cuDNN; what is not here, library.py makes by the patterns of their names. Integers stand for their
// types, whose headers hide the functions behind macros.
EXPORT size_t cudnnGetVersion() { return size_t(setting("cudnn_version")); }
// Whatever it is asked for, there is one, and it is zero: one engine, without a workspace.
EXPORT int cudnnBackendGetAttribute(void*, int, int type, int64_t wanted, int64_t* found, void* values) {
    constexpr int number = 3, real = 5, descriptor = 15;  // of 8 bytes, and an object (cudnn_graph.h)
    if (found) *found = 1;
    if (wanted >= 1 && values && type != descriptor) memset(values, 0, type == number || type == real ? 8 : 4);
    return 0;
}
