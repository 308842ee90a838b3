// NVML, libnvidia-ml.so.1: the calls of the suite and of PyTorch that depend on the device (library.py has the
// others), with a power that the device model gives. No NVIDIA wheel has its header; names, numbers and structures
// are those of the NVML API reference, release 580.
#include "fake.h"

constexpr int SUCCESS = 0, NOT_SUPPORTED = 3, GPU_IS_LOST = 15;
struct Memory { size_t total, free, used; };
struct Utilization { unsigned gpu, memory; };
struct FieldValue { unsigned field, scope; long timestamp, latency; int type, result; size_t value; };

// A handle is the device's number plus one.
static int number_of(void* device) { return int(uintptr_t(device)) - 1; }
// `nvml_lost_device` falls off the bus when this process has launched `nvml_lost_after` kernels.
static int check(void* device) {
    bool lost = number_of(device) == setting("nvml_lost_device", -1) && launches > setting("nvml_lost_after");
    return lost ? GPU_IS_LOST : SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned* number) { return *number = device_count(), SUCCESS; }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned number, void** device) {
    return *device = reinterpret_cast<void*>(uintptr_t(number + 1)), check(*device);
}

EXPORT int nvmlDeviceGetUUID(void* device, char* uuid, unsigned bytes) {
    return snprintf(uuid, bytes, "GPU-00000000-0000-0000-0000-%012d", number_of(device) + 1), check(device);
}

EXPORT int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
    size_t total = size_t(setting("memory_bytes")), used = size_t(setting("nvml_used_bytes"));
    return *memory = {total, total - used, used}, check(device);
}

EXPORT int nvmlDeviceGetUtilizationRates(void* device, Utilization* percent) {
    unsigned gpu = unsigned(setting("nvml_gpu_percent")), memory = unsigned(setting("nvml_memory_percent"));
    return *percent = {gpu, memory}, check(device);
}

EXPORT int nvmlDeviceGetPcieThroughput(void* device, int, unsigned* kilobytes_per_s) {
    return *kilobytes_per_s = unsigned(setting("nvml_pcie_kb_per_s")), check(device);
}

// NVLink's counters: `nvml_nvlink_kib` for each launch, in both directions; without it there are no links.
EXPORT int nvmlDeviceGetFieldValues(void* device, int fields, FieldValue* values) {
    for (int i = 0; i < fields; i++) {
        values[i].result = setting("nvml_nvlink_kib") ? SUCCESS : NOT_SUPPORTED;
        values[i].value = size_t(launches * setting("nvml_nvlink_kib"));
    }
    return check(device);
}

// Millijoules since the driver was loaded: `watts` by the clock, and `joules_per_launch` of this process, so that
// a test knows them without one. `energy_wraps_at`: the counter starts again from 0 there.
EXPORT int nvmlDeviceGetTotalEnergyConsumption(void* device, size_t* millijoules) {
    double joules = now() * setting("watts") + launches * setting("joules_per_launch");
    return *millijoules = size_t(joules * 1e3) % size_t(setting("energy_wraps_at", 1e18)), check(device);
}
