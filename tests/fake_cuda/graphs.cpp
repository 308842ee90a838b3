// Stream capture and graphs. A replay performs a graph's nodes one after the other, also those of streams that were
// forked: a real device may overlap them.
#include <algorithm>
#include <utility>

#include "fake.h"

namespace fake {

struct Graph {
    std::vector<Task> tasks;
};
static Graph* graph_of(void* handle) { return static_cast<Graph*>(handle); }

static std::vector<std::shared_ptr<Capture>>& captures() {  // those in progress
    static auto* all = new std::vector<std::shared_ptr<Capture>>;
    return *all;
}
static thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

static cudaError_t broken(Capture& capture) {
    capture.broken = true;
    return failed(cudaErrorStreamCaptureUnsupported);
}

cudaError_t refuse_captured(Stream& stream) { return stream.capture ? broken(*stream.capture) : cudaSuccess; }

// As the CUDA runtime API reference says at cudaThreadExchangeStreamCaptureMode: a thread's own captures count unless
// they are relaxed, those of other threads if they and this thread are in the global mode.
cudaError_t refuse_unsafe() {
    if (mode_of_thread == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    for (auto& capture : captures()) {
        bool own = capture->thread == std::this_thread::get_id() && capture->mode != cudaStreamCaptureModeRelaxed;
        bool others = mode_of_thread == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
        if (own || others) return broken(*capture);
    }
    return cudaSuccess;
}

static cudaError_t end(Stream& stream, Graph* graph) {
    auto capture = stream.capture;
    if (!capture) return cudaErrorIllegalState;
    for (Stream* each : capture->streams) each->capture = nullptr;
    captures().erase(std::find(captures().begin(), captures().end(), capture));
    if (capture->broken) return cudaErrorStreamCaptureInvalidated;
    if (!capture->unjoined.empty()) return cudaErrorStreamCaptureUnjoined;
    graph->tasks = std::move(capture->tasks);
    return cudaSuccess;
}

// PyTorch begins a capture into a graph of its own; the others get one at the end.
static thread_local Graph* given = nullptr;

}  // namespace fake

using namespace fake;

EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t handle, cudaGraph_t graph, const cudaGraphNode_t*,
                                                 const cudaGraphEdgeData*, size_t, cudaStreamCaptureMode mode) {
    return call([&] {
        static unsigned long long number = 0;
        Stream& stream = stream_of(handle);
        if (stream.capture || !handle) return cudaErrorStreamCaptureUnsupported;
        given = graph_of(graph);
        stream.capture = std::make_shared<Capture>(Capture{&stream, mode, ++number});
        stream.capture->streams.insert(&stream);
        captures().push_back(stream.capture);
        count("graphs", "captured");
        return cudaSuccess;
    });
}
EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    return cudaStreamBeginCaptureToGraph(stream, nullptr, nullptr, nullptr, 0, mode);
}
EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    return call([&] {
        Graph* made = given ? std::exchange(given, nullptr) : new Graph;
        cudaError_t error = end(stream_of(stream), made);
        *graph = error ? nullptr : reinterpret_cast<cudaGraph_t>(made);
        return error;
    });
}
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                            unsigned long long* number, cudaGraph_t* graph,
                                            const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges,
                                            size_t* dependency_count) {
    return call([&] {
        auto& capture = stream_of(stream).capture;
        *status = !capture          ? cudaStreamCaptureStatusNone
                  : capture->broken ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
        if (number && capture) *number = capture->number;
        if (graph) *graph = nullptr;  // only to add nodes of other kinds, which nothing here does
        if (dependencies) *dependencies = nullptr;
        if (edges) *edges = nullptr;
        if (dependency_count) *dependency_count = 0;
    });
}
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    return cudaStreamGetCaptureInfo(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}
EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return std::swap(*mode, mode_of_thread), cudaSuccess;
}
EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* number) {
    return *number = graph_of(graph)->tasks.size(), cudaSuccess;
}
EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    return call([&] {
        count("graphs", "instantiated");
        *executable = reinterpret_cast<cudaGraphExec_t>(new Graph(*graph_of(graph)));
    });
}
EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return call([&] { delete graph_of(graph); }); }
EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    return call([&] { delete graph_of(executable); });
}
EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    auto& tasks = graph_of(executable)->tasks;
    spend_us("graph_node_host_us", double(tasks.size()));
    return call_device("graph_host_us", [&] {
        count("graphs", "launched");
        count_towards_loss();
        for (auto& task : tasks) submit(stream_of(stream), task);
    });
}
