// NCCL between the processes of one machine: a rank leaves what it sends in files, one for each reader, and goes
// on when those that it reads itself are there. Its stream waits, its host does not.
#include <bit>
#include <cstring>
#include <fstream>
#include <numeric>
#include <optional>

// nccl.h includes these without needing them, and they need headers that no wheel has.
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#include <nccl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake.h"

using Ranks = std::vector<int>;
struct Message {
    Seconds at;  // when the sender's stream came to it
    std::string data;
};
using Messages = std::vector<Message>;

struct ncclComm {
    std::string folder;
    int rank, size;
    Ranks all = Ranks(size);
    std::map<std::string, long> numbers = {};  // of the next message, by its route
    bool aborted = false;

    std::string path(const std::string& name, int sender, int reader) const {
        return folder + "/" + name + "." + std::to_string(sender) + "." + std::to_string(reader);
    }
    void post(const std::string& name, const Ranks& readers, const Message& message) const {
        std::string part = folder + "/part." + std::to_string(rank);
        std::ofstream file(part, std::ios::binary);
        file.write(reinterpret_cast<const char*>(&message.at), sizeof message.at) << message.data;
        file.close();
        for (int reader : readers) link(part.c_str(), path(name, rank, reader).c_str());
        unlink(part.c_str());
    }
    std::optional<Message> take(const std::string& name, int sender) const {
        std::ifstream file(path(name, sender, rank), std::ios::binary);
        Message found;
        if (!file.read(reinterpret_cast<char*>(&found.at), sizeof found.at)) return {};
        found.data.assign(std::istreambuf_iterator<char>(file), {});
        unlink(path(name, sender, rank).c_str());
        return found;
    }
};

// One call of NCCL on one rank.
struct Exchange {
    const char* kernel;
    ncclComm* comm;
    cudaStream_t stream;
    std::string route;
    Ranks readers, senders;
    const void* data;  // that it sends
    size_t bytes;
    double traffic;  // bytes that pass through its link
    std::function<void(const Messages&)> finish = [](auto&) {};
};

static Work work_of(const Exchange& what) {
    std::string name = what.route + "." + std::to_string(what.comm->numbers[what.route]++);
    return [=, found = Messages(), posted = false](Stream& on, Seconds enqueued) mutable {
        if (!std::exchange(posted, true)) {
            on.occupy(enqueued, 0);
            auto bytes = what.bytes <= moved_bytes() ? what.bytes : 0;
            what.comm->post(name, what.readers, {on.done_at, {static_cast<const char*>(what.data), bytes}});
        }
        while (found.size() < what.senders.size()) {
            auto next = what.comm->take(name, what.senders[found.size()]);
            if (!next) return what.comm->aborted;
            found.push_back(std::move(*next));
        }
        what.finish(found);
        for (auto& each : found) on.occupy(each.at, 0);
        on.occupy(0, setting("collective_us") * 1e-6 + what.traffic / setting("collective_bytes_per_s"));
        return true;
    };
}

// In a group, messages are sent before any is waited for, whatever the order of the calls.
static thread_local int group_depth = 0;
static thread_local std::vector<Exchange> sends, receives;

static void start(const Exchange& what) {
    call([&] { submit(stream_of(what.stream), [what] { return work_of(what); }); });
}
static ncclResult_t enqueue(const Exchange& what) {
    if (launch(what.kernel, what.stream)) return ncclUnhandledCudaError;
    if (group_depth) (what.readers.empty() ? receives : sends).push_back(what);
    else start(what);
    return ncclSuccess;
}

// The upper half of a float, rounded to the nearest, ties to even: C++ has no such type yet.
struct BFloat16 {
    uint16_t upper = 0;
    BFloat16() = default;
    explicit BFloat16(double value) {
        auto bits = std::bit_cast<uint32_t>(float(value));
        upper = uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    operator double() const { return std::bit_cast<float>(uint32_t(upper) << 16); }
};

// `use`, with a value of the type.
template <class Use>
static auto typed(ncclDataType_t type, Use use) {
    switch (type) {
        case ncclInt8: return use(int8_t());
        case ncclUint8: return use(uint8_t());
        case ncclInt32: return use(int32_t());
        case ncclInt64: return use(int64_t());
        case ncclFloat16: return use(_Float16());
        case ncclBfloat16: return use(BFloat16());
        case ncclFloat64: return use(double());
        default: return use(float());
    }
}
static size_t bytes_of(size_t number, ncclDataType_t type) {
    return number * typed(type, [](auto zero) { return sizeof zero; });
}

// Of what all ranks sent, element by element: in double and rounded once, unlike a real NCCL.
template <class Value>
static void sum(const Messages& all, size_t number, bool mean, Value* to) {
    for (auto& each : all)
        if (each.data.size() < number * sizeof(Value)) return;  // too large to be moved
    for (size_t index = 0; index < number; index++) {
        double total = 0;
        for (auto& each : all) total += double(reinterpret_cast<const Value*>(each.data.data())[index]);
        to[index] = Value(mean ? total / double(all.size()) : total);
    }
}

// The bytes that pass through a rank's link in a ring: 2(n-1)/n of the data in an all-reduce, (n-1)/n of the
// result in an all-gather (NVIDIA, nccl-tests, doc/PERFORMANCE.md).
static double ring(const ncclComm* comm, size_t bytes) { return double(bytes) * (comm->size - 1) / comm->size; }

static std::string route(int sender, int reader) { return std::to_string(sender) + "to" + std::to_string(reader); }

EXPORT ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    static int number = 0;
    const char* folder = getenv("TMPDIR");
    *id = {};
    snprintf(id->internal, sizeof id->internal, "%s/nccl.%d.%d.%.6f", folder ? folder : "/tmp", getpid(), number++,
             now());
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
    std::iota((*comm)->all.begin(), (*comm)->all.end(), 0);
    (*comm)->post("init", (*comm)->all, {});
    for (int other : (*comm)->all)
        while (!(*comm)->take("init", other)) sleep_until(now() + 1e-3);
    keep_progressing();
    say_network(rank);
    return ncclSuccess;
}
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) { return comm->aborted = true, ncclSuccess; }

EXPORT ncclResult_t ncclGroupStart() { return group_depth++, ncclSuccess; }
EXPORT ncclResult_t ncclGroupEnd() {
    if (--group_depth) return ncclSuccess;
    for (auto* calls : {&sends, &receives}) {
        for (auto& each : *calls) start(each);
        calls->clear();
    }
    return ncclSuccess;
}

EXPORT ncclResult_t ncclAllReduce(const void* send, void* receive, size_t number, ncclDataType_t type,
                                  ncclRedOp_t how, ncclComm_t comm, cudaStream_t stream) {
    if (how != ncclSum && how != ncclAvg) return ncclInvalidArgument;
    size_t bytes = bytes_of(number, type);
    double traffic = 2 * ring(comm, bytes);
    auto finish = [=](auto& all) {
        typed(type, [&](auto zero) { sum(all, number, how == ncclAvg, static_cast<decltype(zero)*>(receive)); });
    };
    return enqueue({"ncclAllReduce", comm, stream, "all", comm->all, comm->all, send, bytes, traffic, finish});
}
EXPORT ncclResult_t ncclAllGather(const void* send, void* receive, size_t number, ncclDataType_t type,
                                  ncclComm_t comm, cudaStream_t stream) {
    size_t bytes = bytes_of(number, type);
    double traffic = ring(comm, bytes * comm->size);
    auto finish = [=](auto& all) {
        for (int rank : comm->all)
            memcpy(static_cast<char*>(receive) + rank * bytes, all[rank].data.data(), all[rank].data.size());
    };
    return enqueue({"ncclAllGather", comm, stream, "all", comm->all, comm->all, send, bytes, traffic, finish});
}
EXPORT ncclResult_t ncclBcast(void* data, size_t number, ncclDataType_t type, int root, ncclComm_t comm,
                              cudaStream_t stream) {
    size_t bytes = bytes_of(number, type), sent = comm->rank == root ? bytes : 0;
    auto finish = [=](auto& all) { memcpy(data, all[root].data.data(), all[root].data.size()); };
    return enqueue(
        {"ncclBroadcast", comm, stream, "all", comm->all, comm->all, data, sent, double(bytes), finish});
}
EXPORT ncclResult_t ncclSend(const void* data, size_t number, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
    size_t bytes = bytes_of(number, type);
    return enqueue({"ncclSend", comm, stream, route(comm->rank, peer), {peer}, {}, data, bytes, double(bytes)});
}
EXPORT ncclResult_t ncclRecv(void* data, size_t number, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
    double traffic = double(bytes_of(number, type));
    auto finish = [=](auto& all) { memcpy(data, all[0].data.data(), all[0].data.size()); };
    return enqueue({"ncclRecv", comm, stream, route(peer, comm->rank), {}, {peer}, nullptr, 0, traffic, finish});
}
