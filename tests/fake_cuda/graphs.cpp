// Stream capture and graphs. A replay performs a graph's nodes one after the other, also those of streams that were
// forked: a real device may overlap them.
#include <cstring>

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

cudaError_t refuse_captured(Stream& stream) {
    if (!stream.capture) return cudaSuccess;
    stream.capture->broken = true;
    return failed(cudaErrorStreamCaptureUnsupported);
}

// As the CUDA runtime API reference says at cudaThreadExchangeStreamCaptureMode: a thread's own captures count unless
// they are relaxed, those of other threads if they and this thread are in the global mode.
cudaError_t refuse_unsafe() {
    if (mode_of_thread == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    for (auto& capture : captures()) {
        bool own = capture->thread == std::this_thread::get_id() && capture->mode != cudaStreamCaptureModeRelaxed;
        bool others = mode_of_thread == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
        if (own || others) {
            capture->broken = true;
            return failed(cudaErrorStreamCaptureUnsupported);
        }
    }
    return cudaSuccess;
}

static cudaError_t begin(cudaStream_t handle, cudaStreamCaptureMode mode) {
    static unsigned long long number = 0;
    Guard guard(lock());
    Stream& stream = stream_of(handle);
    if (stream.capture || !handle) return failed(cudaErrorStreamCaptureUnsupported);
    stream.capture = std::make_shared<Capture>();
    stream.capture->origin = &stream;
    stream.capture->mode = mode;
    stream.capture->thread = std::this_thread::get_id();
    stream.capture->number = ++number;
    stream.capture->streams.insert(&stream);
    captures().push_back(stream.capture);
    count("graphs", "captured");
    return cudaSuccess;
}

static cudaError_t end(Stream& stream, Graph* graph) {
    auto capture = stream.capture;
    if (!capture) return failed(cudaErrorIllegalState);
    for (Stream* each : capture->streams) each->capture = nullptr;
    for (auto each = captures().begin(); each != captures().end(); ++each)
        if (*each == capture) {
            captures().erase(each);
            break;
        }
    if (capture->broken) return failed(cudaErrorStreamCaptureInvalidated);
    if (!capture->unjoined.empty()) return failed(cudaErrorStreamCaptureUnjoined);
    graph->tasks = std::move(capture->tasks);
    return cudaSuccess;
}

static cudaStreamCaptureStatus status(const Stream& stream) {
    if (!stream.capture) return cudaStreamCaptureStatusNone;
    return stream.capture->broken ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

// PyTorch begins a capture into a graph of its own; the others get one at the end.
static thread_local Graph* given = nullptr;

}  // namespace fake

using namespace fake;

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    given = nullptr;
    return begin(stream, mode);
}
EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t*,
                                                 const cudaGraphEdgeData*, size_t, cudaStreamCaptureMode mode) {
    given = graph_of(graph);
    return begin(stream, mode);
}
EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    Guard guard(lock());
    Graph* made = given ? given : new Graph;
    given = nullptr;
    cudaError_t error = end(stream_of(stream), made);
    *graph = error ? nullptr : reinterpret_cast<cudaGraph_t>(made);
    return error;
}
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* to) {
    Guard guard(lock());
    *to = status(stream_of(stream));
    return cudaSuccess;
}
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* to, unsigned long long* number,
                                            cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                            const cudaGraphEdgeData** edges, size_t* dependency_count) {
    Guard guard(lock());
    Stream& stream = stream_of(handle);
    *to = status(stream);
    if (number && stream.capture) *number = stream.capture->number;
    if (graph) *graph = nullptr;  // only to add nodes of other kinds, which nothing here does
    if (dependencies) *dependencies = nullptr;
    if (edges) *edges = nullptr;
    if (dependency_count) *dependency_count = 0;
    return cudaSuccess;
}
EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    std::swap(*mode, mode_of_thread);
    return cudaSuccess;
}
EXPORT cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) {
    *graph = reinterpret_cast<cudaGraph_t>(new Graph);
    return cudaSuccess;
}
EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    Guard guard(lock());
    delete graph_of(graph);
    return cudaSuccess;
}
EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* number) {
    *number = graph_of(graph)->tasks.size();
    return cudaSuccess;
}
EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    Guard guard(lock());
    count("graphs", "instantiated");
    *executable = reinterpret_cast<cudaGraphExec_t>(new Graph(*graph_of(graph)));
    return cudaSuccess;
}
EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(executable, graph, flags);
}
EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    Guard guard(lock());
    delete graph_of(executable);
    return cudaSuccess;
}
EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
    if (auto error = check_device()) return error;
    Guard guard(lock());
    Graph& graph = *graph_of(executable);
    double host_us = setting("graph_host_us") + setting("graph_node_host_us") * graph.tasks.size();
    Seconds busy_until = now() + host_us * 1e-6;
    count("host_us", "graph_host_us", host_us);
    count("graphs", "launched");
    count_towards_loss();
    for (auto& task : graph.tasks) submit(stream_of(handle), task);
    while (now() < busy_until) {
    }
    return cudaSuccess;
}
