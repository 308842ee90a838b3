// NCCL between the processes of one machine: a rank leaves what it sends in a file, and a collective is done when the
// files of all ranks are there. Its stream waits, the host does not. Every collective of a communicator has a number.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>

// nccl.h includes these without needing them, and they need headers that no wheel has.
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#include <nccl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake.h"

namespace fake {

struct Posted {
    Seconds at;  // when the sender's stream came to it
    std::string data;
};

}  // namespace fake

struct ncclComm {
    std::string folder;
    int rank, size;
    long collectives = 0;
    std::map<std::string, long> messages = {};  // by their route
    bool aborted = false;

    std::string path(const std::string& name) const { return folder + "/" + name; }
    void post(const std::string& name, const fake::Posted& what) const {
        {
            std::ofstream file(path(name) + ".part", std::ios::binary);
            file.write(reinterpret_cast<const char*>(&what.at), sizeof what.at);
            file << what.data;
        }
        rename((path(name) + ".part").c_str(), path(name).c_str());
    }
    std::optional<fake::Posted> posted(const std::string& name) const {
        std::ifstream file(path(name), std::ios::binary);
        fake::Posted found;
        if (!file.read(reinterpret_cast<char*>(&found.at), sizeof found.at)) return {};
        found.data.assign(std::istreambuf_iterator<char>(file), {});
        return found;
    }
};

namespace fake {

static std::string of_rank(long number, int rank) { return std::to_string(number) + "." + std::to_string(rank); }

// `use`, with a value of the type; of bfloat16 only the bytes, since C++17 cannot add them.
template <class Use>
static auto typed(ncclDataType_t type, Use use) {
    switch (type) {
        case ncclInt8: return use(int8_t());
        case ncclUint8: return use(uint8_t());
        case ncclInt32: return use(int32_t());
        case ncclInt64: return use(int64_t());
        case ncclFloat16: return use(_Float16());
        case ncclBfloat16: return use(uint16_t());
        case ncclFloat64: return use(double());
        default: return use(float());
    }
}
static size_t bytes_of(size_t number, ncclDataType_t type) {
    return number * typed(type, [](auto zero) { return sizeof zero; });
}

// Element by element over all ranks: in double, so not in the order or precision of a real NCCL.
template <class Value>
static void reduce(const std::vector<Posted>& all, size_t number, ncclRedOp_t how, Value* to) {
    for (auto& each : all)
        if (each.data.size() < number * sizeof(Value)) return;  // too large to be moved
    auto sent = [&](size_t rank, size_t index) {
        return double(reinterpret_cast<const Value*>(all[rank].data.data())[index]);
    };
    for (size_t index = 0; index < number; index++) {
        double result = sent(0, index);
        for (size_t rank = 1; rank < all.size(); rank++) {
            double value = sent(rank, index);
            result = how == ncclMax   ? std::max(result, value)
                     : how == ncclMin ? std::min(result, value)
                     : how == ncclProd ? result * value
                                       : result + value;
        }
        to[index] = Value(how == ncclAvg ? result / double(all.size()) : result);
    }
}

// In a group, messages are sent before any is waited for, whatever the order of the calls.
static thread_local int group_depth = 0;
static thread_local std::vector<std::function<void()>> sends, receives;

static ncclResult_t enqueue(const char* name, cudaStream_t stream, bool is_send, Task task) {
    if (launch(name, stream)) return ncclUnhandledCudaError;
    auto start = [=] { call([&] { submit(stream_of(stream), task); }); };
    if (group_depth) (is_send ? sends : receives).push_back(start);
    else start();
    return ncclSuccess;
}

static std::string payload(const void* data, size_t bytes) {
    return bytes <= moved_bytes() ? std::string(static_cast<const char*>(data), bytes) : "";
}
static Seconds time_of(double bytes) { return bytes / setting("collective_bytes_per_s"); }

// `finish` gets what all ranks sent, in their order. `traffic`: the bytes that pass through a rank's link.
static ncclResult_t collective(const char* name, ncclComm* comm, cudaStream_t stream, const void* send, size_t bytes,
                               double traffic, std::function<void(const std::vector<Posted>&)> finish) {
    return enqueue(name, stream, true, [=]() -> Work {
        long number = comm->collectives++;
        return [=, all = std::vector<Posted>(), posted = false](Stream& on, Seconds enqueued) mutable {
            if (!posted) {
                on.occupy(enqueued, 0);
                comm->post(of_rank(number, comm->rank), {on.done_at, payload(send, bytes)});
                posted = true;
            }
            while (int(all.size()) < comm->size) {
                auto next = comm->posted(of_rank(number, int(all.size())));
                if (!next) return comm->aborted;
                all.push_back(std::move(*next));
            }
            finish(all);
            for (auto& each : all) on.occupy(each.at, 0);
            on.occupy(0, setting("collective_us") * 1e-6 + time_of(traffic));
            // All have read the one before, since they came to this one.
            unlink(comm->path(of_rank(number - 1, comm->rank)).c_str());
            return true;
        };
    });
}

static std::string next_message(ncclComm* comm, int from, int to) {
    std::string route = std::to_string(from) + "to" + std::to_string(to);
    return route + "." + std::to_string(comm->messages[route]++);
}

// The bytes that pass through a rank's link in a ring: 2(n-1)/n of the data in an all-reduce, (n-1)/n of the result in
// an all-gather (NVIDIA, nccl-tests, doc/PERFORMANCE.md).
static double ring(const ncclComm* comm, size_t bytes) { return double(bytes) * (comm->size - 1) / comm->size; }

}  // namespace fake

using namespace fake;

EXPORT ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
EXPORT const char* ncclGetErrorString(ncclResult_t) { return "an error of NCCL"; }
EXPORT const char* ncclGetLastError(ncclComm_t) { return ""; }
EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    static int number = 0;
    const char* folder = getenv("TMPDIR");
    *id = {};
    snprintf(id->internal, sizeof id->internal, "%s/nccl.%d.%d.%.6f", folder ? folder : "/tmp", getpid(), number++, now());
    return ncclSuccess;
}
// One line of the log that NCCL_DEBUG=INFO asks for: the network that NCCL_NET chooses, which is none here.
static void say_network(int rank) {
    const char *level = getenv("NCCL_DEBUG"), *log = getenv("NCCL_DEBUG_FILE"), *network = getenv("NCCL_NET");
    if (!level || strcmp(level, "INFO") || !log) return;
    std::ofstream(log, std::ios::app) << "fake:" << getpid() << ":" << getpid() << " [" << rank
                                      << "] NCCL INFO Using network " << (network ? network : "Socket") << "\n";
}

// Returns when all ranks have come, as the real one does.
EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
    mkdir(id.internal, 0700);
    *comm = new ncclComm{id.internal, rank, size};
    (*comm)->post(of_rank(-1, rank), {});
    for (int other = 0; other < size; other++)
        while (!(*comm)->posted(of_rank(-1, other))) sleep_until(now() + 1e-3);
    keep_progressing();
    say_network(rank);
    return ncclSuccess;
}
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) { return comm->aborted = true, ncclSuccess; }

EXPORT ncclResult_t ncclGroupStart() { return group_depth++, ncclSuccess; }
EXPORT ncclResult_t ncclGroupEnd() {
    if (--group_depth) return ncclSuccess;
    for (auto* calls : {&sends, &receives}) {
        for (auto& start : *calls) start();
        calls->clear();
    }
    return ncclSuccess;
}

EXPORT ncclResult_t ncclAllReduce(const void* send, void* receive, size_t number, ncclDataType_t type, ncclRedOp_t how,
                                  ncclComm_t comm, cudaStream_t stream) {
    size_t bytes = bytes_of(number, type);
    return collective("ncclAllReduce", comm, stream, send, bytes, 2 * ring(comm, bytes), [=](auto& all) {
        typed(type, [&](auto zero) { reduce(all, number, how, static_cast<decltype(zero)*>(receive)); });
    });
}
EXPORT ncclResult_t ncclAllGather(const void* send, void* receive, size_t number, ncclDataType_t type, ncclComm_t comm,
                                  cudaStream_t stream) {
    size_t bytes = bytes_of(number, type);
    return collective("ncclAllGather", comm, stream, send, bytes, ring(comm, bytes * comm->size), [=](auto& all) {
        for (int rank = 0; rank < comm->size; rank++)
            memcpy(static_cast<char*>(receive) + rank * bytes, all[rank].data.data(), all[rank].data.size());
    });
}
EXPORT ncclResult_t ncclBroadcast(const void* send, void* receive, size_t number, ncclDataType_t type, int root,
                                  ncclComm_t comm, cudaStream_t stream) {
    size_t bytes = bytes_of(number, type);
    return collective("ncclBroadcast", comm, stream, send, comm->rank == root ? bytes : 0, double(bytes),
                      [=](auto& all) { memcpy(receive, all[root].data.data(), all[root].data.size()); });
}
EXPORT ncclResult_t ncclBcast(void* data, size_t number, ncclDataType_t type, int root, ncclComm_t comm,
                              cudaStream_t stream) {
    return ncclBroadcast(data, data, number, type, root, comm, stream);
}
EXPORT ncclResult_t ncclSend(const void* data, size_t number, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
    size_t bytes = bytes_of(number, type);
    return enqueue("ncclSend", stream, true, [=]() -> Work {
        return [=, name = next_message(comm, comm->rank, peer)](Stream& on, Seconds enqueued) {
            on.occupy(enqueued, time_of(double(bytes)));
            comm->post(name, {on.done_at, payload(data, bytes)});
            return true;
        };
    });
}
EXPORT ncclResult_t ncclRecv(void* data, size_t, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
    return enqueue("ncclRecv", stream, false, [=]() -> Work {
        return [=, name = next_message(comm, peer, comm->rank)](Stream& on, Seconds enqueued) {
            auto posted = comm->posted(name);
            if (!posted) return comm->aborted;
            memcpy(data, posted->data.data(), posted->data.size());
            on.occupy(std::max(enqueued, posted->at), 0);
            unlink(comm->path(name).c_str());
            return true;
        };
    });
}
