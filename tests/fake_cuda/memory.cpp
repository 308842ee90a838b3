// Memory: a device's is host memory that nothing touches, so that 80 GB of it exist on any machine. Copies move
// data and take their bytes over a bandwidth; those from or to pageable memory keep the host until they are done.
#include <sys/mman.h>

#include "fake.h"

using Place = cudaMemoryType;
constexpr Place PAGEABLE = cudaMemoryTypeUnregistered, PINNED = cudaMemoryTypeHost, DEVICE = cudaMemoryTypeDevice;
static auto& blocks = *new std::map<uintptr_t, std::pair<Place, size_t>>;  // place and bytes, by the first byte
static size_t used_bytes, peak_bytes;  // of the device; a process of these tests uses one
static Place place_of(const void* pointer) {
    Guard guard(lock);
    auto next = blocks.upper_bound(uintptr_t(pointer));
    if (next == blocks.begin()) return PAGEABLE;
    auto& [begin, block] = *std::prev(next);
    return uintptr_t(pointer) < begin + block.second ? block.first : PAGEABLE;
}

static cudaError_t allocate(Place place, void** pointer, size_t bytes) {
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) return cudaErrorMemoryAllocation;
    blocks[uintptr_t(pages)] = {place, bytes};
    *pointer = pages;
    return cudaSuccess;
}

static std::string route_name(Place to, Place from) {
    if (to != DEVICE && from != DEVICE) return "host to host";
    if (to == from) return "device to device";
    const char* host = std::min(to, from) == PINNED ? ", pinned" : ", pageable";
    return (to == DEVICE ? "host to device" : "device to host") + std::string(host);
}

static Seconds copy_time(size_t bytes, Place to, Place from) {
    if (to == from) return 2 * bytes / setting("memory_bytes_per_s");  // read and written
    return bytes / setting(std::min(to, from) == PAGEABLE ? "pageable_bytes_per_s" : "link_bytes_per_s");
}

EXPORT cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    *pointer = nullptr;
    return call([&] {
        if (auto refused = std::max(check_device(), refuse_unsafe())) return refused;
        if (used_bytes + bytes > setting("memory_bytes")) return cudaErrorMemoryAllocation;
        used_bytes += bytes;
        if (used_bytes > peak_bytes)
            count("peak", "device_bytes", double(used_bytes - std::exchange(peak_bytes, used_bytes)));
        return allocate(DEVICE, pointer, bytes);
    });
}

// Waits for the device (CUDA runtime API reference).
EXPORT cudaError_t cudaFree(void* pointer) {
    if (!pointer) return cudaSuccess;  // how PyTorch makes a context
    return call_waiting("cudaFree", refuse_unsafe, [=] {
        wait_for_device();
        Guard guard(lock);
        size_t bytes = blocks.extract(uintptr_t(pointer)).mapped().second;
        munmap(pointer, bytes);
        used_bytes -= bytes;
    });
}

EXPORT cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
    return call([&] {
        count("host_allocations", "cudaHostAlloc");
        auto refused = refuse_unsafe();
        return refused ? refused : allocate(PINNED, pointer, bytes);
    });
}

EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    *total = size_t(setting("memory_bytes"));
    *free = *total - used_bytes;
    return cudaSuccess;
}

EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    *attributes = {};
    attributes->type = place_of(pointer);
    attributes->device = attributes->type == DEVICE ? current_device() : 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t handle) {
    Place target = place_of(to), source = place_of(from);
    Stream& stream = stream_of(handle);
    bool host_waits = std::max(target, source) == DEVICE && std::min(target, source) == PAGEABLE;
    auto error = call_device("copy_host_us", [&] {
        if (auto refused = host_waits ? refuse_captured(stream) : cudaSuccess) return refused;
        count("copies", route_name(target, source));
        auto move = [=] { if (bytes <= moved_bytes()) memmove(to, from, bytes); };
        submit(stream, copy_time(bytes, target, source), move);
        return cudaSuccess;
    });
    if (host_waits && !error) wait_for(stream);
    return error;
}

EXPORT cudaError_t cudaMemsetAsync(void* begin, int value, size_t bytes, cudaStream_t stream) {
    return call_device("launch_host_us", [&] {
        count("memsets", "cudaMemsetAsync");
        auto set = [=] { if (bytes <= moved_bytes()) memset(begin, value, bytes); };
        submit(stream_of(stream), bytes / setting("memory_bytes_per_s"), set);
    });
}
