// Stream capture and graphs. A replay performs a graph's nodes one after the other, also those of streams that
// were forked: a real device may overlap them.
#include "fake.h"

using Graph = std::vector<Task>;

static auto& captures = *new std::set<std::shared_ptr<Capture>>;  // those in progress
static thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

static cudaError_t broken(Capture& capture) { return capture.broken = true, cudaErrorStreamCaptureUnsupported; }
cudaError_t refuse_captured(Stream& stream) { return stream.capture ? broken(*stream.capture) : cudaSuccess; }
// As the CUDA runtime API reference says at cudaThreadExchangeStreamCaptureMode: a thread's own captures count unless
// they or it are relaxed, those of other threads if they and this thread are in the global mode, the lowest number.
cudaError_t refuse_unsafe() {
    for (auto& capture : captures) {
        bool own = capture->thread == std::this_thread::get_id();
        auto counting = own ? cudaStreamCaptureModeThreadLocal : cudaStreamCaptureModeGlobal;
        if (std::max(mode_of_thread, capture->mode) <= counting) return broken(*capture);
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
        return hand_out(graph, new Graph(capture->tasks));
    });
}

// Nobody asks for graph and dependencies: they are only for adding nodes of other kinds.
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                            unsigned long long* number, cudaGraph_t*, const cudaGraphNode_t**,
                                            const cudaGraphEdgeData**, size_t*) {
    return call([&] {
        auto& capture = stream_of(stream).capture;
        auto active = capture && capture->broken ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
        *status = capture ? active : cudaStreamCaptureStatusNone;
        if (number && capture) *number = capture->number;
    });
}

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    return cudaStreamGetCaptureInfo(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    std::swap(*mode, mode_of_thread);
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                                 unsigned long long) {
    count("graphs", "instantiated");
    return hand_out(executable, &object_of<Graph>(graph));  // which nothing destroys
}

EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    auto& graph = object_of<Graph>(executable);
    spend_us("graph_node_host_us", double(graph.size()));
    return call_device("graph_host_us", [&] {
        count("graphs", "launched");
        launches++;
        for (auto& task : graph) submit(stream_of(stream), task);
    });
}
