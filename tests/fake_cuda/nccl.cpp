// NCCL between the processes of one machine: a rank leaves what it sends in a file, and a collective is done when the
// files of all ranks are there. Its stream waits, the host does not. Every collective of a communicator has a number.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

// nccl.h includes these without needing them, and they need headers that no wheel has.
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#include <nccl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake.h"

struct ncclComm {
    std::string folder;
    int rank, size, device = fake::current_device();
    long collectives = 0;
    std::map<std::string, long> messages;  // sent to and received from each rank
    bool aborted = false;
};

namespace fake {

struct Posted {
    Seconds at;  // when the sender's stream came to it
    std::string data;
};

static void post(const ncclComm& comm, const std::string& name, const Posted& what) {
    std::string path = comm.folder + "/" + name, unfinished = path + ".part";
    {
        std::ofstream file(unfinished, std::ios::binary);
        file.write(reinterpret_cast<const char*>(&what.at), sizeof what.at);
        file.write(what.data.data(), std::streamsize(what.data.size()));
    }
    rename(unfinished.c_str(), path.c_str());
}

static std::optional<Posted> read_posted(const ncclComm& comm, const std::string& name) {
    std::ifstream file(comm.folder + "/" + name, std::ios::binary);
    if (!file) return {};
    Posted posted;
    file.read(reinterpret_cast<char*>(&posted.at), sizeof posted.at);
    posted.data.assign(std::istreambuf_iterator<char>(file), {});
    return posted;
}

static void remove_posted(const ncclComm& comm, const std::string& name) {
    unlink((comm.folder + "/" + name).c_str());
}

static std::string of_rank(const std::string& name, int rank) { return name + "." + std::to_string(rank); }

// One line of the log that NCCL_DEBUG=INFO asks for: the network that NCCL_NET chooses, which is none here.
static void say_network(int rank) {
    const char *level = getenv("NCCL_DEBUG"), *log = getenv("NCCL_DEBUG_FILE"), *network = getenv("NCCL_NET");
    if (!level || strcmp(level, "INFO") || !log) return;
    std::ofstream(log, std::ios::app) << "fake:" << getpid() << ":" << getpid() << " [" << rank
                                      << "] NCCL INFO Using network " << (network ? network : "Socket") << "\n";
}

// Returns when all ranks have come, as the real one does.
static ncclComm* join(const std::string& folder, int rank, int size) {
    mkdir(folder.c_str(), 0700);
    auto* comm = new ncclComm;
    comm->folder = folder;
    comm->rank = rank;
    comm->size = size;
    post(*comm, of_rank("joined", rank), {});
    for (int other = 0; other < size; other++)
        while (!read_posted(*comm, of_rank("joined", other))) sleep_until(now() + 1e-3);
    keep_progressing();
    say_network(rank);
    return comm;
}

static size_t bytes_of(ncclDataType_t type) {
    switch (type) {
        case ncclInt8: case ncclUint8: return 1;
        case ncclFloat16: case ncclBfloat16: return 2;
        case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
        default: return 4;
    }
}

static float from_bfloat16(uint16_t bits) {
    uint32_t wide = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}
static uint16_t to_bfloat16(float value) {  // rounds to the nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static double load(const char* data, size_t index, ncclDataType_t type) {
    switch (type) {
        case ncclInt8: return reinterpret_cast<const int8_t*>(data)[index];
        case ncclUint8: return reinterpret_cast<const uint8_t*>(data)[index];
        case ncclInt32: return reinterpret_cast<const int32_t*>(data)[index];
        case ncclInt64: return double(reinterpret_cast<const int64_t*>(data)[index]);
        case ncclFloat64: return reinterpret_cast<const double*>(data)[index];
        case ncclFloat16: return double(reinterpret_cast<const _Float16*>(data)[index]);
        case ncclBfloat16: return from_bfloat16(reinterpret_cast<const uint16_t*>(data)[index]);
        default: return reinterpret_cast<const float*>(data)[index];
    }
}
static void store(char* data, size_t index, ncclDataType_t type, double value) {
    switch (type) {
        case ncclInt8: reinterpret_cast<int8_t*>(data)[index] = int8_t(value); break;
        case ncclUint8: reinterpret_cast<uint8_t*>(data)[index] = uint8_t(value); break;
        case ncclInt32: reinterpret_cast<int32_t*>(data)[index] = int32_t(value); break;
        case ncclInt64: reinterpret_cast<int64_t*>(data)[index] = int64_t(value); break;
        case ncclFloat64: reinterpret_cast<double*>(data)[index] = value; break;
        case ncclFloat16: reinterpret_cast<_Float16*>(data)[index] = _Float16(value); break;
        case ncclBfloat16: reinterpret_cast<uint16_t*>(data)[index] = to_bfloat16(float(value)); break;
        default: reinterpret_cast<float*>(data)[index] = float(value);
    }
}

// Element by element over all ranks: in double, so not in the order or precision of a real NCCL.
static void reduce(const std::vector<Posted>& all, size_t number, ncclDataType_t type, ncclRedOp_t how,
                   char* to) {
    for (auto& each : all)
        if (each.data.size() < number * bytes_of(type)) return;  // too large to be moved
    for (size_t index = 0; index < number; index++) {
        double result = load(all[0].data.data(), index, type);
        for (size_t rank = 1; rank < all.size(); rank++) {
            double value = load(all[rank].data.data(), index, type);
            result = how == ncclMax   ? std::max(result, value)
                     : how == ncclMin ? std::min(result, value)
                     : how == ncclProd ? result * value
                                       : result + value;
        }
        store(to, index, type, how == ncclAvg ? result / double(all.size()) : result);
    }
}

// In a group, messages are sent before any is waited for, whatever the order of the calls.
static thread_local int group_depth = 0;
static thread_local std::vector<std::pair<bool, std::function<void()>>> group;  // whether it sends

static ncclResult_t enqueue(const char* name, cudaStream_t handle, bool sends, Task task) {
    if (launch(name, handle)) return ncclUnhandledCudaError;
    auto start = [handle, task = std::move(task)] {
        Guard guard(lock());
        submit(stream_of(handle), task);
    };
    if (group_depth) group.emplace_back(sends, start);
    else start();
    return ncclSuccess;
}

static std::string payload(const void* data, size_t bytes) {
    return bytes <= moved_bytes() ? std::string(static_cast<const char*>(data), bytes) : "";
}

// `finish` gets what all ranks sent, in their order. `traffic`: the bytes that pass through a rank's link.
static ncclResult_t collective(const char* name, ncclComm* comm, cudaStream_t stream, const void* send, size_t bytes,
                               double traffic, std::function<void(const std::vector<Posted>&)> finish) {
    Seconds duration = setting("collective_us") * 1e-6 + traffic / setting("collective_bytes_per_s");
    return enqueue(name, stream, true, [=]() -> Work {
        std::string number = std::to_string(comm->collectives++), before = std::to_string(comm->collectives - 2);
        auto all = std::make_shared<std::vector<Posted>>();
        auto posted = std::make_shared<bool>(false);
        return [=](Stream& on, Seconds enqueued) {
            if (!*posted) {
                on.occupy(enqueued, 0);
                post(*comm, of_rank(number, comm->rank), {on.done_at, payload(send, bytes)});
                *posted = true;
            }
            while (int(all->size()) < comm->size) {
                auto next = read_posted(*comm, of_rank(number, int(all->size())));
                if (!next) return comm->aborted;
                all->push_back(std::move(*next));
            }
            finish(*all);
            for (auto& each : *all) on.occupy(each.at, 0);
            on.occupy(0, duration);
            // All have read the one before, since they came to this one.
            remove_posted(*comm, of_rank(before, comm->rank));
            return true;
        };
    });
}

}  // namespace fake

using namespace fake;

EXPORT ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
EXPORT const char* ncclGetErrorString(ncclResult_t) { return "an error of NCCL"; }
EXPORT const char* ncclGetLastError(ncclComm_t) { return ""; }
EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    static int number = 0;
    const char* folder = getenv("TMPDIR");
    std::ostringstream path;
    path << (folder ? folder : "/tmp") << "/nccl." << getpid() << "." << number++ << "." << now();
    *id = {};
    strncpy(id->internal, path.str().c_str(), sizeof id->internal - 1);
    return ncclSuccess;
}
EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
    return *comm = join(id.internal, rank, size), ncclSuccess;
}
EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}
EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int, ncclUniqueId* ids,
                                             ncclConfig_t*) {
    return ncclCommInitRankConfig(comm, size, ids[0], rank, nullptr);
}
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) { return comm->aborted = true, ncclSuccess; }
EXPORT ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
EXPORT ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) { return *error = ncclSuccess; }
EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int* size) { return *size = comm->size, ncclSuccess; }
EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) { return *rank = comm->rank, ncclSuccess; }
EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) { return *device = comm->device, ncclSuccess; }

EXPORT ncclResult_t ncclGroupStart() { return group_depth++, ncclSuccess; }
EXPORT ncclResult_t ncclGroupEnd() {
    if (--group_depth) return ncclSuccess;
    auto calls = std::move(group);
    group.clear();
    for (bool sends : {true, false})
        for (auto& [does, start] : calls)
            if (does == sends) start();
    return ncclSuccess;
}

// The bytes that pass through a rank's link in a ring: 2(n-1)/n of the data in an all-reduce, (n-1)/n of the result in
// an all-gather (NVIDIA, nccl-tests, doc/PERFORMANCE.md).
static double ring(const ncclComm* comm, size_t bytes) { return double(bytes) * (comm->size - 1) / comm->size; }

EXPORT ncclResult_t ncclAllReduce(const void* send, void* receive, size_t number, ncclDataType_t type, ncclRedOp_t how,
                                  ncclComm_t comm, cudaStream_t stream) {
    size_t bytes = number * bytes_of(type);
    return collective("ncclAllReduce", comm, stream, send, bytes, 2 * ring(comm, bytes), [=](auto& all) {
        reduce(all, number, type, how, static_cast<char*>(receive));
    });
}
EXPORT ncclResult_t ncclAllGather(const void* send, void* receive, size_t number, ncclDataType_t type, ncclComm_t comm,
                                  cudaStream_t stream) {
    size_t bytes = number * bytes_of(type);
    return collective("ncclAllGather", comm, stream, send, bytes, ring(comm, bytes * comm->size), [=](auto& all) {
        for (int rank = 0; rank < comm->size; rank++)
            memcpy(static_cast<char*>(receive) + rank * bytes, all[rank].data.data(), all[rank].data.size());
    });
}
EXPORT ncclResult_t ncclBroadcast(const void* send, void* receive, size_t number, ncclDataType_t type, int root,
                                  ncclComm_t comm, cudaStream_t stream) {
    size_t bytes = number * bytes_of(type);
    size_t sent = comm->rank == root ? bytes : 0;
    return collective("ncclBroadcast", comm, stream, send, sent, double(bytes), [=](auto& all) {
        memcpy(receive, all[root].data.data(), all[root].data.size());
    });
}
EXPORT ncclResult_t ncclBcast(void* data, size_t number, ncclDataType_t type, int root, ncclComm_t comm,
                              cudaStream_t stream) {
    return ncclBroadcast(data, data, number, type, root, comm, stream);
}

static std::string message(ncclComm* comm, int from, int to) {
    std::string route = std::to_string(from) + "to" + std::to_string(to);
    return route + "." + std::to_string(comm->messages[route]++);
}
EXPORT ncclResult_t ncclSend(const void* data, size_t number, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
    size_t bytes = number * bytes_of(type);
    return enqueue("ncclSend", stream, true, [=]() -> Work {
        std::string name = message(comm, comm->rank, peer);
        return [=](Stream& on, Seconds enqueued) {
            on.occupy(enqueued, bytes / setting("collective_bytes_per_s"));
            post(*comm, name, {on.done_at, payload(data, bytes)});
            return true;
        };
    });
}
EXPORT ncclResult_t ncclRecv(void* data, size_t number, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
    (void)number, (void)type;
    return enqueue("ncclRecv", stream, false, [=]() -> Work {
        std::string name = message(comm, peer, comm->rank);
        return [=](Stream& on, Seconds enqueued) {
            auto posted = read_posted(*comm, name);
            if (!posted) return comm->aborted;
            memcpy(data, posted->data.data(), posted->data.size());
            on.occupy(std::max(enqueued, posted->at), 0);
            remove_posted(*comm, name);
            return true;
        };
    });
}
