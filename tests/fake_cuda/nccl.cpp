// NCCL between the processes of one machine: a rank leaves what it sends in files of TMPDIR, one for each reader, and
// goes on when those that it reads itself are there. Its stream waits, its host does not.
#include <bit>
#include <filesystem>
#include <fstream>
#include <numeric>

// nccl.h includes these without needing them, and they need headers that no wheel has.
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#include <nccl.h>
#include <unistd.h>

#include "fake.h"

using std::filesystem::path;
using Ranks = std::vector<int>;
struct Message {
    Seconds at;  // when the sender's stream came to it
    std::string data;
};
using Messages = std::vector<Message>;

struct ncclComm {
    path folder;
    int rank, size;
    std::vector<long> sent = std::vector<long>(size), received = sent;  // messages, to and from each rank
    Ranks all = Ranks(size);
    bool aborted = false;

    path file(int sender, int reader, long number) const {
        return folder / (std::to_string(sender) + "to" + std::to_string(reader) + "." + std::to_string(number));
    }
};
static void post(const path& file, const Message& message) {
    path part = file.string() + ".part";
    std::ofstream(part, std::ios::binary).write(reinterpret_cast<const char*>(&message.at), sizeof message.at)
        << message.data;
    rename(part, file);
}

static bool take(const path& file, Messages& found) {
    std::ifstream in(file, std::ios::binary);
    Message next;
    if (!in.read(reinterpret_cast<char*>(&next.at), sizeof next.at)) return false;
    next.data.assign(std::istreambuf_iterator<char>(in), {});
    return found.push_back(std::move(next)), remove(file);
}

static void store(const Message& message, void* to) { memcpy(to, message.data.data(), message.data.size()); }

// One call of NCCL on one rank.
struct Exchange {
    const char* kernel;
    ncclComm* comm;
    cudaStream_t stream;
    Ranks readers, senders;
    const void* data;  // that it sends, if anyone reads it
    size_t bytes;
    double share;  // of the bytes, that passes through its link
    std::function<void(const Messages&)> finish = [](auto&) {};
};

// Messages are numbered when they are submitted: the calls of all ranks have the same order.
static Work work_of(const Exchange& what) {
    ncclComm& comm = *what.comm;
    std::vector<path> to, from;
    for (int rank : what.readers) to.push_back(comm.file(comm.rank, rank, comm.sent[rank]++));
    for (int rank : what.senders) from.push_back(comm.file(rank, comm.rank, comm.received[rank]++));
    return [=, found = Messages()](Stream& on, Seconds enqueued) mutable {
        on.occupy(enqueued, 0);
        size_t bytes = what.bytes <= moved_bytes() ? what.bytes : 0;
        for (auto& file : std::exchange(to, {}))
            post(file, {on.done_at, {static_cast<const char*>(what.data), bytes}});
        while (found.size() < from.size())
            if (!take(from[found.size()], found)) return what.comm->aborted;
        what.finish(found);
        for (auto& each : found) on.occupy(each.at, 0);
        on.occupy(0, setting("collective_us") * 1e-6 + what.share * what.bytes / setting("collective_bytes_per_s"));
        return true;
    };
}

// Calls wait for the end of their group, where messages are sent before any is waited for.
static thread_local int group_depth = 0;
static thread_local std::vector<Exchange> calls;
static ncclResult_t start() {
    if (group_depth) return ncclSuccess;
    std::ranges::stable_partition(calls, [](auto& each) { return !each.readers.empty(); });
    for (auto& what : std::exchange(calls, {}))
        call([&] { submit(stream_of(what.stream), [what] { return work_of(what); }); });
    return ncclSuccess;
}

static ncclResult_t enqueue(const Exchange& what) {
    if (launch(what.kernel, what.stream)) return ncclUnhandledCudaError;
    calls.push_back(what);
    return start();
}

// The upper half of a float, rounded to the nearest, ties to even: C++ has no such type yet.
struct BFloat16 {
    uint16_t upper;
    explicit BFloat16(double value = 0) {
        auto bits = std::bit_cast<uint32_t>(float(value));
        upper = uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    operator double() const { return std::bit_cast<float>(uint32_t(upper) << 16); }
};
// `use`, with a value of the type.
static auto typed(ncclDataType_t type, auto use) {
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
    if (all[0].data.size() < number * sizeof(Value)) return;  // too large to be moved
    for (size_t index = 0; index < number; index++) {
        double total = 0;
        for (auto& each : all) total += double(reinterpret_cast<const Value*>(each.data.data())[index]);
        to[index] = Value(mean ? total / double(all.size()) : total);
    }
}

EXPORT ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    std::string folder = std::filesystem::temp_directory_path() / "nccl.XXXXXX";
    *id = {};
    strcpy(id->internal, mkdtemp(folder.data()));
    return ncclSuccess;
}

// One line of the log that NCCL_DEBUG=INFO asks for: the network that NCCL_NET chooses, which is none here.
static void say_network(int rank) {
    const char *level = getenv("NCCL_DEBUG"), *log = getenv("NCCL_DEBUG_FILE"), *network = getenv("NCCL_NET");
    if (!level || strcmp(level, "INFO") || !log) return;
    if (!network) network = "Socket";
    std::ofstream(log, std::ios::app) << "fake:0:0 [" << rank << "] NCCL INFO Using network " << network << "\n";
}

// Returns when all ranks have come, as the real one does.
EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* to, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
    ncclComm* comm = *to = new ncclComm{id.internal, rank, size};
    std::iota(comm->all.begin(), comm->all.end(), 0);
    Stream none;
    Work meeting = work_of({"", comm, nullptr, comm->all, comm->all, nullptr, 0, 0});
    while (!meeting(none, 0)) sleep_until(now() + 1e-3);
    keep_progressing();
    say_network(rank);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) { return comm->aborted = true, ncclSuccess; }
// The last rank to leave finds the folder empty.
EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) { return rmdir(comm->folder.c_str()), ncclSuccess; }

EXPORT ncclResult_t ncclGroupStart() { return group_depth++, ncclSuccess; }
EXPORT ncclResult_t ncclGroupEnd() { return group_depth--, start(); }

// In a ring 2(n-1)/n of the data in an all-reduce, and (n-1)/n of the result in an all-gather, pass through a rank's
// link (NVIDIA, nccl-tests, doc/PERFORMANCE.md).
EXPORT ncclResult_t ncclAllReduce(const void* send, void* receive, size_t number, ncclDataType_t type,
                                  ncclRedOp_t how, ncclComm_t comm, cudaStream_t stream) {
    if (how != ncclSum && how != ncclAvg) return ncclInvalidArgument;
    auto finish = [=](auto& all) {
        typed(type, [&](auto zero) { sum(all, number, how == ncclAvg, static_cast<decltype(zero)*>(receive)); });
    };
    size_t bytes = bytes_of(number, type);
    double share = 2.0 * (comm->size - 1) / comm->size;
    return enqueue({"ncclAllReduce", comm, stream, comm->all, comm->all, send, bytes, share, finish});
}

EXPORT ncclResult_t ncclAllGather(const void* send, void* receive, size_t number, ncclDataType_t type,
                                  ncclComm_t comm, cudaStream_t stream) {
    size_t bytes = bytes_of(number, type);
    auto finish = [=](auto& all) {
        for (int rank : comm->all) store(all[rank], static_cast<char*>(receive) + rank * bytes);
    };
    return enqueue({"ncclAllGather", comm, stream, comm->all, comm->all, send, bytes, comm->size - 1.0, finish});
}

EXPORT ncclResult_t ncclBcast(void* data, size_t number, ncclDataType_t type, int root, ncclComm_t comm,
                              cudaStream_t stream) {
    auto finish = [=](auto& all) { store(all[root], data); };
    return enqueue({"ncclBroadcast", comm, stream, comm->all, comm->all, data, bytes_of(number, type), 1, finish});
}

EXPORT ncclResult_t ncclSend(const void* data, size_t number, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
    return enqueue({"ncclSend", comm, stream, {peer}, {}, data, bytes_of(number, type), 1});
}

EXPORT ncclResult_t ncclRecv(void* data, size_t number, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
    auto finish = [=](auto& found) { store(found[0], data); };
    return enqueue({"ncclRecv", comm, stream, {}, {peer}, nullptr, bytes_of(number, type), 1, finish});
}
