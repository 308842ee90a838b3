// A CUDA device that computes nothing, under the real CUDA build of PyTorch. README.md says what it does and does
// not do; this header has what its files share, one part for each.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include <cuda_runtime_api.h>

#include "libraries.h"
using Seconds = double;

// Guards everything below; nothing sleeps while it holds it. Recursive, since calls are made of one another. Like
// all that is global here it is never destroyed: threads outlive the end of main.
inline auto& lock = *new std::recursive_mutex;
using Guard = std::lock_guard<std::recursive_mutex>;

// settings.cpp: the device model (devices/*.toml) and what FAKE_CUDA_SET changes in it.
double setting(const std::string& key, double otherwise = 0);
std::string text(const std::string& key);
Seconds kernel_time(const std::string& kernel);  // on the current device

// device.cpp
int device_count();
int current_device();
cudaError_t failed(cudaError_t error);  // notes it for cudaGetLastError
cudaError_t check_device();             // an error once the current device is lost
inline long launches = 0;               // of this process, graphs too

// streams.cpp. The clock of a device is wall time: a stream knows when the work that it has been given will be
// done, and whoever synchronises sleeps until then.
struct Capture;
struct Stream;

// One piece of work: moves data, and the stream's clock. False: not yet, another rank has to come first. A task
// makes it anew for each replay of a graph.
using Work = std::function<bool(Stream&, Seconds enqueued)>;
using Task = std::function<Work()>;
struct Stream {
    int device = current_device();
    Seconds done_at = 0;                           // when everything that has left the queue is done
    std::deque<std::pair<Seconds, Work>> waiting;  // behind work that waits for another rank
    std::shared_ptr<Capture> capture;

    void occupy(Seconds from, Seconds duration) { done_at = std::max(done_at, from) + duration; }
};

Seconds now();
void sleep_until(Seconds time);
void spend_us(const char* setting, double times = 1);  // the host is busy for that long
Stream& stream_of(cudaStream_t handle);
void submit(Stream& stream, const Task& task);
void submit(Stream& stream, Seconds duration, std::function<void()> effect = [] {});  // of work that never waits
void wait_for(Stream& stream);  // the host sleeps until it is idle
void wait_for_device();
void keep_progressing();  // from now on

// graphs.cpp
struct Capture {
    Stream* origin;
    cudaStreamCaptureMode mode;
    unsigned long long number;
    std::thread::id thread = std::this_thread::get_id();
    std::vector<Task> tasks = {};
    std::set<Stream*> streams = {};   // that take part
    std::set<Stream*> unjoined = {};  // of these, with work that the origin does not wait for yet
    bool broken = false;
};

// The errors of calls that wait for a stream which is captured, and of those that CUDA calls unsafe meanwhile.
cudaError_t refuse_captured(Stream& stream);
cudaError_t refuse_unsafe();

// launches.cpp
cudaError_t launch(const std::string& kernel, cudaStream_t stream);

// memory.cpp. Larger copies take time but move nothing: the memory of a device of 80 GB is host memory here, and
// only what is written to takes any. Batches and buckets of smoke presets are far smaller. 0 to time the host alone.
inline size_t moved_bytes() { return size_t(setting("moved_bytes", 32 << 20)); }

// report.cpp
void count(const char* section, const std::string& name, double amount = 1);

// What CUDA calls a handle is a pointer to an object of ours.
template <class Object>
Object& object_of(void* handle) { return *static_cast<Object*>(handle); }
template <class Handle>
cudaError_t hand_out(Handle* handle, auto* object) {
    *handle = reinterpret_cast<Handle>(object);
    return cudaSuccess;
}
auto locked(auto body) {
    Guard guard(lock);
    return body();
}

// What a call of the runtime does, under the lock. It succeeds unless `body` returns an error.
cudaError_t call(auto body) {
    if constexpr (std::is_void_v<decltype(body())>) return locked(body), cudaSuccess;
    else return failed(locked(body));
}
// The same for one that gives the device something to do, which takes the host the `host_us` of the model.
cudaError_t call_device(const char* host_us, auto body) {
    if (auto error = check_device()) return error;
    spend_us(host_us);
    return call(body);
}
// The same for one that keeps the host until the device has done something, unless `refuse` returns an error.
cudaError_t call_waiting(const char* counted_as, auto refuse, auto wait) {
    count("synchronisations", counted_as);
    if (auto refused = call(refuse)) return refused;
    wait();
    return check_device();
}
