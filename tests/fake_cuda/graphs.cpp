// Stream capture and graphs. A replay performs a graph's nodes one after the other, also those of streams that
// were forked: a real device may overlap them.
#include <utility>

#include "fake.h"

using Graph = std::vector<Task>;

static auto& captures = *new std::set<std::shared_ptr<Capture>>;  // those in progress
static thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

static cudaError_t broken(Capture& capture) {
    capture.broken = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t refuse_captured(Stream& stream) { return stream.capture ? broken(*stream.capture) : cudaSuccess; }

// As the CUDA runtime API reference says at cudaThreadExchangeStreamCaptureMode: a thread's own captures count
// unless they are relaxed, those of other threads if they and this thread are in the global mode.
cudaError_t refuse_unsafe() {
    if (mode_of_thread == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    for (auto& capture : captures) {
        bool own = capture->thread == std::this_thread::get_id() && capture->mode != cudaStreamCaptureModeRelaxed;
        bool all = mode_of_thread == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
        if (own || all) return broken(*capture);
    }
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    return call([&] {
        static unsigned long long number = 0;
        Stream& stream = stream_of(handle);
        if (stream.capture || !handle) return cudaErrorStreamCaptureUnsupported;
        stream.capture = std::make_shared<Capture>(Capture{&stream, mode, ++number});
        stream.capture->streams.insert(&stream);
        captures.insert(stream.capture);
        count("graphs", "captured");
        return cudaSuccess;
    });
}
EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    return call([&] {
        *graph = nullptr;
        auto capture = stream_of(stream).capture;
        if (!capture) return cudaErrorIllegalState;
        for (Stream* each : capture->streams) each->capture = nullptr;
        captures.erase(capture);
        if (capture->broken) return cudaErrorStreamCaptureInvalidated;
        if (!capture->unjoined.empty()) return cudaErrorStreamCaptureUnjoined;
        hand_out(graph, new Graph(capture->tasks));
        return cudaSuccess;
    });
}
// Without graph and dependencies: they are only for adding nodes of other kinds, which nothing here does.
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                            unsigned long long* number, cudaGraph_t* graph,
                                            const cudaGraphNode_t** nodes, const cudaGraphEdgeData**,
                                            size_t* count) {
    return call([&] {
        auto& capture = stream_of(stream).capture;
        *status = !capture          ? cudaStreamCaptureStatusNone
                  : capture->broken ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
        if (number && capture) *number = capture->number;
        if (graph) *graph = nullptr;
        if (nodes) *nodes = nullptr;
        if (count) *count = 0;
    });
}
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    return cudaStreamGetCaptureInfo(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}
EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return std::swap(*mode, mode_of_thread), cudaSuccess;
}
EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* number) {
    return *number = object_of<Graph>(graph).size(), cudaSuccess;
}
EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                                 unsigned long long) {
    count("graphs", "instantiated");
    return hand_out(executable, &object_of<Graph>(graph)), cudaSuccess;  // which nothing destroys
}
EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    auto& graph = object_of<Graph>(executable);
    spend_us("graph_node_host_us", double(graph.size()));
    return call_device("graph_host_us", [&] {
        count("graphs", "launched");
        count_towards_loss();
        for (auto& task : graph) submit(stream_of(stream), task);
    });
}
