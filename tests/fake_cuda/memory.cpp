// Memory: a device's is host memory that nothing touches, so that 80 GB of it exist on any machine. Copies move data
// and take their bytes over a bandwidth; those from or to pageable memory keep the host until they are done.
#include <cstring>
#include <map>

#include <sys/mman.h>

#include "fake.h"

namespace fake {

static std::map<uintptr_t, size_t>& blocks(Place place) {
    static auto* device = new std::map<uintptr_t, size_t>;
    static auto* pinned = new std::map<uintptr_t, size_t>;
    return place == Place::device ? *device : *pinned;
}
static size_t used_bytes;  // of the device; a process of these tests uses one

static bool within(Place place, const void* pointer) {
    auto& all = blocks(place);
    auto next = all.upper_bound(uintptr_t(pointer));
    if (next == all.begin()) return false;
    auto block = std::prev(next);
    return uintptr_t(pointer) < block->first + block->second;
}

Place place_of(const void* pointer) {
    Guard guard(lock());
    if (within(Place::device, pointer)) return Place::device;
    return within(Place::pinned, pointer) ? Place::pinned : Place::pageable;
}

static void* map_pages(size_t bytes) {
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages == MAP_FAILED ? nullptr : pages;
}

static size_t whole_pages(size_t bytes) { return (bytes + 4095) & ~size_t(4095); }

static cudaError_t allocate(Place place, void** pointer, size_t bytes) {
    *pointer = map_pages(whole_pages(bytes));
    if (!*pointer) return failed(cudaErrorMemoryAllocation);
    blocks(place)[uintptr_t(*pointer)] = whole_pages(bytes);
    return cudaSuccess;
}

static size_t release(Place place, void* pointer) {
    auto block = blocks(place).find(uintptr_t(pointer));
    if (block == blocks(place).end()) return 0;
    size_t bytes = block->second;
    munmap(pointer, bytes);
    blocks(place).erase(block);
    return bytes;
}

static const char* route_name(Place to, Place from) {
    if (to == Place::device && from == Place::device) return "device to device";
    if (to == Place::device) return from == Place::pinned ? "host to device, pinned" : "host to device, pageable";
    if (from == Place::device) return to == Place::pinned ? "device to host, pinned" : "device to host, pageable";
    return "host to host";
}

static Seconds copy_time(size_t bytes, Place to, Place from) {
    if (to == from) return 2 * bytes / setting("memory_bytes_per_s");  // read and written
    bool pageable = to == Place::pageable || from == Place::pageable;
    return bytes / setting(pageable ? "pageable_bytes_per_s" : "link_bytes_per_s");
}

static cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t handle, bool host_waits) {
    if (auto error = check_device()) return error;
    spend_us("copy_host_us");
    Place target = place_of(to), source = place_of(from);
    bool pageable = target == Place::pageable || source == Place::pageable;
    host_waits = host_waits || (pageable && (target == Place::device || source == Place::device));
    Stream& stream = stream_of(handle);
    {
        Guard guard(lock());
        if (host_waits)
            if (auto error = refuse_captured(stream)) return error;
        count("copies", route_name(target, source));
        count("copied_bytes", route_name(target, source), double(bytes));
        Seconds duration = copy_time(bytes, target, source);
        submit(stream, [=] {
            return [=](Stream& on, Seconds enqueued) {
                if (bytes <= moved_bytes()) memmove(to, from, bytes);
                on.occupy(enqueued, duration);
                return true;
            };
        });
    }
    if (host_waits) wait_for(stream);
    return cudaSuccess;
}

// Whole pages of zeros are handed back instead, so that clearing a large tensor takes no memory.
static void fill(char* begin, int value, size_t bytes) {
    char *first = (char*)whole_pages(uintptr_t(begin)), *last = (char*)(uintptr_t(begin + bytes) & ~uintptr_t(4095));
    if (value || first >= last) {
        if (bytes <= moved_bytes()) memset(begin, value, bytes);
        return;
    }
    memset(begin, 0, first - begin);
    madvise(first, last - first, MADV_DONTNEED);
    memset(last, 0, begin + bytes - last);
}

}  // namespace fake

using namespace fake;

EXPORT cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    *pointer = nullptr;
    if (auto error = check_device()) return error;
    Guard guard(lock());
    if (auto error = refuse_unsafe()) return error;
    if (used_bytes + whole_pages(bytes) > setting("memory_bytes")) return failed(cudaErrorMemoryAllocation);
    count("device_allocations", "cudaMalloc");
    used_bytes += whole_pages(bytes);
    record_peak("device_bytes", double(used_bytes));
    return allocate(Place::device, pointer, bytes);
}
EXPORT cudaError_t cudaFree(void* pointer) {
    if (!pointer) return cudaSuccess;  // how PyTorch makes a context
    {
        Guard guard(lock());
        if (auto error = refuse_unsafe()) return error;
        count("synchronisations", "cudaFree");  // implicit (CUDA runtime API reference)
    }
    wait_for_device();
    Guard guard(lock());
    used_bytes -= release(Place::device, pointer);
    return cudaSuccess;
}
EXPORT cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
    Guard guard(lock());
    if (auto error = refuse_unsafe()) return error;
    count("host_allocations", "cudaHostAlloc");
    return allocate(Place::pinned, pointer, bytes);
}
EXPORT cudaError_t cudaFreeHost(void* pointer) {
    Guard guard(lock());
    release(Place::pinned, pointer);
    return cudaSuccess;
}
EXPORT cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
    Guard guard(lock());
    count("host_allocations", "cudaHostRegister");
    blocks(Place::pinned)[uintptr_t(pointer)] = bytes;
    return cudaSuccess;
}
EXPORT cudaError_t cudaHostUnregister(void* pointer) {
    Guard guard(lock());
    blocks(Place::pinned).erase(uintptr_t(pointer));
    return cudaSuccess;
}
EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    Guard guard(lock());
    *total = size_t(setting("memory_bytes"));
    *free = *total - used_bytes;
    return cudaSuccess;
}
EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    *attributes = {};
    Place place = place_of(pointer);
    attributes->device = place == Place::device ? current_device() : 0;
    attributes->type = place == Place::device   ? cudaMemoryTypeDevice
                       : place == Place::pinned ? cudaMemoryTypeHost
                                                : cudaMemoryTypeUnregistered;
    if (place != Place::pageable) attributes->devicePointer = const_cast<void*>(pointer);
    if (place == Place::pinned) attributes->hostPointer = const_cast<void*>(pointer);
    return cudaSuccess;
}
EXPORT cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    count("synchronisations", "cudaMemcpy");
    return copy(to, from, bytes, nullptr, true);
}
EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    return copy(to, from, bytes, stream, false);
}
EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
    return copy(to, from, bytes, stream, false);
}
EXPORT cudaError_t cudaMemsetAsync(void* begin, int value, size_t bytes, cudaStream_t handle) {
    if (auto error = check_device()) return error;
    spend_us("launch_host_us");
    Guard guard(lock());
    count("memsets", "cudaMemsetAsync");
    Seconds duration = bytes / setting("memory_bytes_per_s");
    submit(stream_of(handle), [=] {
        return [=](Stream& on, Seconds enqueued) {
            fill((char*)begin, value, bytes);
            on.occupy(enqueued, duration);
            return true;
        };
    });
    return cudaSuccess;
}
EXPORT cudaError_t cudaMemset(void* begin, int value, size_t bytes) {
    return cudaMemsetAsync(begin, value, bytes, nullptr);
}
