// Devices: how many there are, what they are, and when one is lost.
#include <cstdlib>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

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
        std::vector<int> installed(size_t(setting("devices", 1)));
        std::iota(installed.begin(), installed.end(), 0);
        const char* chosen = getenv("CUDA_VISIBLE_DEVICES");
        if (!chosen) return new std::vector<int>(installed);
        auto* numbers = new std::vector<int>;
        std::istringstream words(chosen);
        for (std::string word; std::getline(words, word, ',');)
            if (atoi(word.c_str()) < int(installed.size())) numbers->push_back(atoi(word.c_str()));
        return numbers;
    }();
    return *devices;
}

int device_count() { return int(visible().size()); }
int physical_device(int device) { return visible().at(device); }
int current_device() { return current; }

cudaError_t failed(cudaError_t error) {
    if (error) last_error = error;
    return error;
}

cudaError_t check_device() {
    if (!device_count()) return failed(cudaErrorNoDevice);
    int number = physical_device(current);
    double limit = setting("lost_after_launches", -1);
    bool lost = number == setting("lost_device", 0) && limit >= 0 && launches[number] > limit;
    return failed(lost ? cudaErrorECCUncorrectable : cudaSuccess);
}

void count_towards_loss() { launches[physical_device(current)]++; }
long all_launches() { return std::accumulate(std::begin(launches), std::end(launches), 0L); }

static int attribute(int which) {
    static const std::map<int, const char*> modelled = {
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
    };
    if (auto key = modelled.find(which); key != modelled.end()) return int(setting(key->second));
    auto value = common.find(which);
    return value == common.end() ? 0 : value->second;
}

}  // namespace fake

using namespace fake;

EXPORT cudaError_t cudaGetDeviceCount(int* number) {
    *number = device_count();
    return failed(*number ? cudaSuccess : cudaErrorNoDevice);
}
EXPORT cudaError_t cudaGetDevice(int* device) { return *device = current, cudaSuccess; }
EXPORT cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= device_count()) return failed(cudaErrorInvalidDevice);
    return current = device, cudaSuccess;
}
EXPORT cudaError_t cudaPeekAtLastError() { return last_error; }
EXPORT cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

// The texts are those of CUDA 13; PyTorch puts them into its messages.
EXPORT const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
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
EXPORT const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

// A driver of the toolkit that PyTorch was built with.
EXPORT cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }

EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
    return *value = attribute(which), cudaSuccess;
}
EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    cudaDeviceProp& of = *properties = {};
    snprintf(of.name, sizeof of.name, "%s", text("name").c_str());
    of.uuid.bytes[0] = char(physical_device(device) + 1);
    of.major = attribute(cudaDevAttrComputeCapabilityMajor);
    of.minor = attribute(cudaDevAttrComputeCapabilityMinor);
    of.multiProcessorCount = attribute(cudaDevAttrMultiProcessorCount);
    of.totalGlobalMem = size_t(setting("memory_bytes"));
    of.l2CacheSize = attribute(cudaDevAttrL2CacheSize);
    of.sharedMemPerBlock = attribute(cudaDevAttrMaxSharedMemoryPerBlock);
    of.sharedMemPerBlockOptin = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    of.sharedMemPerMultiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    of.regsPerMultiprocessor = attribute(cudaDevAttrMaxRegistersPerMultiprocessor);
    of.warpSize = attribute(cudaDevAttrWarpSize);
    of.maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
    of.maxThreadsPerMultiProcessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
    for (int axis = 0; axis < 3; axis++) {
        of.maxThreadsDim[axis] = attribute(cudaDevAttrMaxBlockDimX + axis);
        of.maxGridSize[axis] = attribute(cudaDevAttrMaxGridDimX + axis);
    }
    return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
    return snprintf(id, bytes, "0000:%02x:00.0", physical_device(device) + 1), cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return *least = 0, *greatest = -5, cudaSuccess;
}
