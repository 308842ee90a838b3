// The driver's interface, libcuda.so.1: what Triton and PyTorch call of it. Its errors have the runtime's numbers.
#include <cuda.h>
#include <dlfcn.h>

#include "fake.h"

EXPORT CUresult cuDriverGetVersion(int* version) { return CUresult(cudaDriverGetVersion(version)); }
EXPORT CUresult cuDeviceGet(CUdevice* device, int number) { return *device = number, CUDA_SUCCESS; }
EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
    return CUresult(cudaDeviceGetAttribute(value, cudaDeviceAttr(which), device));
}

// A module is nothing, a function its name.
EXPORT CUresult cuModuleLoadData(CUmodule* module, const void*) {
    count("modules", "cuModuleLoadData");
    return CUresult(hand_out(module, new char));
}

EXPORT CUresult cuModuleLoad(CUmodule* module, const char*) { return cuModuleLoadData(module, nullptr); }
EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
    return CUresult(hand_out(function, strdup(name)));
}

EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction) {
    return *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0, CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                               unsigned, CUstream stream, void**, void**) {
    return CUresult(launch(reinterpret_cast<const char*>(function), stream));
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* configuration, CUfunction function, void**, void**) {
    return CUresult(launch(reinterpret_cast<const char*>(function), configuration->hStream));
}

EXPORT CUresult cuPointerGetAttribute(void* value, CUpointer_attribute which, CUdeviceptr pointer) {
    if (which != CU_POINTER_ATTRIBUTE_DEVICE_POINTER) return CUDA_ERROR_NOT_SUPPORTED;
    return *static_cast<CUdeviceptr*>(value) = pointer, CUDA_SUCCESS;
}

// Functions by name: those of this library, and for the others one that says that the device cannot do it.
EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                                    unsigned long long, cudaDriverEntryPointQueryResult* result) {
    auto unsupported = [] { return CUDA_ERROR_NOT_SUPPORTED; };
    *function = dlsym(RTLD_DEFAULT, name);
    if (!*function) *function = reinterpret_cast<void*>(+unsupported);
    if (result) *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
