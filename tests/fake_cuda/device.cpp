// Devices: how many there are, what they are, and when one is lost.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>

#include "fake.h"

namespace fake {

std::recursive_mutex& lock() {
    static auto* mutex = new std::recursive_mutex;  // never destroyed: threads outlive the end of main
    return *mutex;
}

static thread_local int current = 0;
static thread_local cudaError_t last_error = cudaSuccess;
static long launches[64];  // of each device, by its physical number

static const std::vector<int>& visible() {
    static const auto* devices = [] {
        auto* numbers = new std::vector<int>;
        int installed = int(setting("devices", 1));
        const char* chosen = getenv("CUDA_VISIBLE_DEVICES");
        std::istringstream words(chosen ? chosen : "");
        for (std::string word; std::getline(words, word, ',');)
            if (atoi(word.c_str()) < installed) numbers->push_back(atoi(word.c_str()));
        for (int number = 0; !chosen && number < installed; number++) numbers->push_back(number);
        return numbers;
    }();
    return *devices;
}

int device_count() { return int(visible().size()); }
int physical_device(int device) { return visible().at(device); }
int current_device() { return current; }

cudaError_t failed(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}

cudaError_t check_device() {
    if (!device_count()) return failed(cudaErrorNoDevice);
    int number = physical_device(current);
    double limit = setting("lost_after_launches", -1);
    bool lost = number == setting("lost_device", 0) && limit >= 0 && launches[number] > limit;
    return lost ? failed(cudaErrorECCUncorrectable) : cudaSuccess;
}

void count_towards_loss() { launches[physical_device(current)]++; }
long all_launches() {
    long sum = 0;
    for (long each : launches) sum += each;
    return sum;
}

static int attribute(int which) {
    static const std::map<int, const char*> keys = {
        {cudaDevAttrMultiProcessorCount, "multiprocessors"},
        {cudaDevAttrComputeCapabilityMajor, "major"},
        {cudaDevAttrComputeCapabilityMinor, "minor"},
        {cudaDevAttrL2CacheSize, "l2_bytes"},
        {cudaDevAttrMaxSharedMemoryPerBlock, "shared_bytes_per_block"},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, "shared_bytes_per_block_at_most"},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, "shared_bytes_per_multiprocessor"},
        {cudaDevAttrClockRate, "clock_khz"},
    };
    // The same on all devices since Volta (CUDA C++ Programming Guide 13.0, table "Technical Specifications per
    // Compute Capability").
    static const std::map<int, int> common = {
        {cudaDevAttrWarpSize, 32},
        {cudaDevAttrMaxThreadsPerBlock, 1024},
        {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrMaxRegistersPerBlock, 65536},
        {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
        {cudaDevAttrMaxBlockDimX, 1024},
        {cudaDevAttrMaxBlockDimY, 1024},
        {cudaDevAttrMaxBlockDimZ, 64},
        {cudaDevAttrMaxGridDimX, 2147483647},
        {cudaDevAttrMaxGridDimY, 65535},
        {cudaDevAttrMaxGridDimZ, 65535},
        {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
        {cudaDevAttrUnifiedAddressing, 1},
        {cudaDevAttrCanMapHostMemory, 1},
        {cudaDevAttrConcurrentKernels, 1},
    };
    if (auto key = keys.find(which); key != keys.end()) return int(setting(key->second));
    auto value = common.find(which);
    return value == common.end() ? 0 : value->second;
}

}  // namespace fake

using namespace fake;

EXPORT cudaError_t cudaGetDeviceCount(int* number) {
    *number = device_count();
    return *number ? cudaSuccess : failed(cudaErrorNoDevice);
}
EXPORT cudaError_t cudaGetDevice(int* device) {
    *device = current;
    return cudaSuccess;
}
EXPORT cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= device_count()) return failed(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}
EXPORT cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
EXPORT cudaError_t cudaPeekAtLastError() { return last_error; }

// The texts are those of CUDA 13; PyTorch puts them into its messages.
EXPORT const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
        case cudaErrorNoKernelImageForDevice: return "no kernel image is available for execution on the device";
        case cudaErrorECCUncorrectable: return "uncorrectable ECC error encountered";
        case cudaErrorNotReady: return "device not ready";
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
        case cudaErrorStreamCaptureUnjoined: return "capturing stream has unjoined work";
        case cudaErrorStreamCaptureIsolation: return "dependency created on uncaptured work in another stream";
        case cudaSuccess: return "no error";
        default: return "an error without a text in tests/fake_cuda";
    }
}
EXPORT const char* cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : cudaGetErrorString(error);
}

// A driver of the toolkit that PyTorch was built with.
EXPORT cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
EXPORT cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }

EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
    *value = attribute(which);
    return cudaSuccess;
}
EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    *properties = {};
    snprintf(properties->name, sizeof properties->name, "%s", text("name").c_str());
    properties->uuid.bytes[0] = char(physical_device(device) + 1);
    properties->totalGlobalMem = size_t(setting("memory_bytes"));
    properties->sharedMemPerBlock = attribute(cudaDevAttrMaxSharedMemoryPerBlock);
    properties->sharedMemPerBlockOptin = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    properties->sharedMemPerMultiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    properties->regsPerBlock = attribute(cudaDevAttrMaxRegistersPerBlock);
    properties->regsPerMultiprocessor = attribute(cudaDevAttrMaxRegistersPerMultiprocessor);
    properties->warpSize = attribute(cudaDevAttrWarpSize);
    properties->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
    properties->maxThreadsPerMultiProcessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
    properties->maxBlocksPerMultiProcessor = attribute(cudaDevAttrMaxBlocksPerMultiprocessor);
    for (int axis = 0; axis < 3; axis++) {
        properties->maxThreadsDim[axis] = attribute(cudaDevAttrMaxBlockDimX + axis);
        properties->maxGridSize[axis] = attribute(cudaDevAttrMaxGridDimX + axis);
    }
    properties->major = attribute(cudaDevAttrComputeCapabilityMajor);
    properties->minor = attribute(cudaDevAttrComputeCapabilityMinor);
    properties->multiProcessorCount = attribute(cudaDevAttrMultiProcessorCount);
    properties->l2CacheSize = attribute(cudaDevAttrL2CacheSize);
    properties->unifiedAddressing = properties->concurrentKernels = properties->canMapHostMemory = 1;
    properties->textureAlignment = 512;
    return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
    snprintf(id, bytes, "0000:%02x:00.0", physical_device(device) + 1);
    return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 1, cudaSuccess; }
