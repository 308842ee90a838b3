// Devices: how many there are, what they are, and when one is lost.
#include "fake.h"

static thread_local int current = 0;
static thread_local cudaError_t last_error = cudaSuccess;

int device_count() { return int(setting("devices", 1)); }
int current_device() { return current; }
cudaError_t failed(cudaError_t error) { return error ? last_error = error : error; }
cudaError_t check_device() {
    bool lost = current == setting("lost_device", 0) && launches > setting("lost_after_launches", 1e18);
    return failed(lost ? cudaErrorECCUncorrectable : cudaSuccess);
}

EXPORT cudaError_t cudaGetDeviceCount(int* number) { return *number = device_count(), cudaSuccess; }
EXPORT cudaError_t cudaGetDevice(int* device) { return *device = current, cudaSuccess; }
EXPORT cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= device_count()) return failed(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}

EXPORT cudaError_t cudaPeekAtLastError() { return last_error; }
EXPORT cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

// The texts are those of CUDA 13; PyTorch puts them into its messages.
EXPORT const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaErrorECCUncorrectable: return "uncorrectable ECC error encountered";
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureUnjoined: return "capturing stream has unjoined work";
        default: return "an error without a text in tests/fake_cuda";
    }
}

// Attributes, as members of cudaDeviceProp too. Numbers are the same on all devices since Volta (CUDA C++
// Programming Guide 13.0, table "Technical Specifications per Compute Capability").
#define ATTRIBUTES(OF)                                                                                           \
    OF(ComputeCapabilityMajor, major, setting("major"))                                                          \
    OF(ComputeCapabilityMinor, minor, setting("minor"))                                                          \
    OF(MultiProcessorCount, multiProcessorCount, setting("multiprocessors"))                                     \
    OF(L2CacheSize, l2CacheSize, setting("l2_bytes"))                                                            \
    OF(MaxSharedMemoryPerBlock, sharedMemPerBlock, setting("shared_bytes_per_block"))                            \
    OF(MaxSharedMemoryPerBlockOptin, sharedMemPerBlockOptin, setting("shared_bytes_per_block_at_most"))          \
    OF(MaxSharedMemoryPerMultiprocessor, sharedMemPerMultiprocessor, setting("shared_bytes_per_multiprocessor")) \
    OF(WarpSize, warpSize, 32)                                                                                   \
    OF(MaxRegistersPerBlock, regsPerBlock, 65536)                                                                \
    OF(MaxRegistersPerMultiprocessor, regsPerMultiprocessor, 65536)                                              \
    OF(MaxThreadsPerBlock, maxThreadsPerBlock, 1024)                                                             \
    OF(MaxThreadsPerMultiProcessor, maxThreadsPerMultiProcessor, 2048)                                           \
    OF(MaxBlockDimX, maxThreadsDim[0], 1024)                                                                     \
    OF(MaxBlockDimY, maxThreadsDim[1], 1024)                                                                     \
    OF(MaxBlockDimZ, maxThreadsDim[2], 64)                                                                       \
    OF(MaxGridDimX, maxGridSize[0], 2147483647)                                                                  \
    OF(MaxGridDimY, maxGridSize[1], 65535)                                                                       \
    OF(MaxGridDimZ, maxGridSize[2], 65535)

EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
#define CASE(name, member, number) \
    case cudaDevAttr##name: return *value = int(number), cudaSuccess;
    switch (which) {
        ATTRIBUTES(CASE)
        case cudaDevAttrClockRate: return *value = int(setting("clock_khz")), cudaSuccess;
        default: return *value = 0, cudaSuccess;
    }
}

EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
#define SET(name, member, number) properties->member = number;
    *properties = {};
    ATTRIBUTES(SET)
    snprintf(properties->name, sizeof properties->name, "%s", text("name").c_str());
    properties->uuid.bytes[0] = char(device + 1);
    properties->pciBusID = device + 1;
    properties->totalGlobalMem = size_t(setting("memory_bytes"));
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

// A driver of the toolkit that PyTorch was built with.
EXPORT cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
