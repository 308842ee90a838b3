// The driver's interface, libcuda.so.1: what Triton and PyTorch call of it.
#include <cstring>

#include <cuda.h>
#include <dlfcn.h>

#include "fake.h"

using namespace fake;

static CUresult same(cudaError_t error) { return CUresult(error); }  // the runtime's numbers are the driver's

EXPORT CUresult CUDAAPI cuInit(unsigned) { return device_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
EXPORT CUresult CUDAAPI cuDriverGetVersion(int* version) { return same(cudaDriverGetVersion(version)); }
EXPORT CUresult CUDAAPI cuDeviceGetCount(int* number) { return *number = device_count(), CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuDeviceGet(CUdevice* device, int number) { return *device = number, CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
    return same(cudaDeviceGetAttribute(value, cudaDeviceAttr(which), device));
}

// One context for each device, which exists from the start.
static CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(uintptr_t(device + 1)); }
EXPORT CUresult CUDAAPI cuCtxGetCurrent(CUcontext* context) {
    return *context = context_of(current_device()), CUDA_SUCCESS;
}
EXPORT CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
    return context ? same(cudaSetDevice(int(uintptr_t(context)) - 1)) : CUDA_SUCCESS;
}
EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    return *context = context_of(device), CUDA_SUCCESS;
}

// A module is nothing, a function its name.
EXPORT CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void*) {
    count("modules", "cuModuleLoadData");
    return *module = reinterpret_cast<CUmodule>(new char), CUDA_SUCCESS;
}
EXPORT CUresult CUDAAPI cuModuleLoad(CUmodule* module, const char*) { return cuModuleLoadData(module, nullptr); }
EXPORT CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
    return *function = reinterpret_cast<CUfunction>(strdup(name)), CUDA_SUCCESS;
}
EXPORT CUresult CUDAAPI cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction) {
    *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : which == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
    return CUDA_SUCCESS;
}
EXPORT CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                       unsigned, CUstream stream, void**, void**) {
    return same(launch(reinterpret_cast<const char*>(function), stream));
}
EXPORT CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* configuration, CUfunction function, void**, void**) {
    return same(launch(reinterpret_cast<const char*>(function), configuration->hStream));
}
EXPORT CUresult CUDAAPI cuPointerGetAttribute(void* value, CUpointer_attribute which, CUdeviceptr pointer) {
    if (which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) *static_cast<CUdeviceptr*>(value) = pointer;
    else *static_cast<int*>(value) = CU_MEMORYTYPE_DEVICE;
    return CUDA_SUCCESS;
}
EXPORT CUresult CUDAAPI cuGetErrorString(CUresult error, const char** text) {
    return *text = cudaGetErrorString(cudaError_t(error)), CUDA_SUCCESS;
}

// Functions by name: those of this library, and for the others one that says that the device cannot do it.
static CUresult unsupported() { return CUDA_ERROR_NOT_SUPPORTED; }
static void* function_named(const std::string& name) {
    for (const char* version : {"", "_v2", "_v3"})
        if (void* function = dlsym(RTLD_DEFAULT, (name + version).c_str())) return function;
    return reinterpret_cast<void*>(unsupported);
}
EXPORT CUresult CUDAAPI cuGetProcAddress(const char* name, void** function, int, cuuint64_t,
                                         CUdriverProcAddressQueryResult* result) {
    if (result) *result = CU_GET_PROC_ADDRESS_SUCCESS;
    return *function = function_named(name), CUDA_SUCCESS;
}
EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult* result) {
    if (result) *result = cudaDriverEntryPointSuccess;
    return *function = function_named(name), cudaSuccess;
}
