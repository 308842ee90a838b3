// Streams and events. A stream performs its work as soon as it is given, and its clock runs ahead by the time that
// the work takes; only work that waits for another rank, and what comes after it, is kept in a queue.
#include <chrono>

#include "fake.h"

Seconds now() {
    return std::chrono::duration<Seconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
void sleep_until(Seconds time) { std::this_thread::sleep_for(std::chrono::duration<Seconds>(time - now())); }
void spend_us(const char* key, double times) {
    double us = times * setting(key);
    count("host_us", key, us);
    for (Seconds end = now() + us * 1e-6; now() < end;) {}
}

static auto& streams = *new std::vector<Stream*>;
static Stream* new_stream() { return streams.emplace_back(new Stream); }
Stream& stream_of(cudaStream_t handle) {
    if (handle && handle != cudaStreamLegacy && handle != cudaStreamPerThread) return object_of<Stream>(handle);
    static auto& defaults = *new std::map<int, Stream*>;  // one for each device
    Guard guard(lock);
    Stream*& stream = defaults[current_device()];
    return *(stream ? stream : stream = new_stream());
}

void submit(Stream& stream, const Task& task) {
    if (stream.capture) {
        stream.capture->tasks.push_back(task);
        if (&stream != stream.capture->origin) stream.capture->unjoined.insert(&stream);
        return;
    }
    Work work = task();
    if (stream.waiting.empty() && work(stream, now())) return;
    stream.waiting.emplace_back(now(), std::move(work));
}
void submit(Stream& stream, Seconds duration, std::function<void()> effect) {
    submit(stream, [=] {
        return [=](Stream& on, Seconds enqueued) { return on.occupy(enqueued, duration), effect(), true; };
    });
}

// How often work that waits for another rank is tried again: far below the milliseconds that the tests measure.
constexpr Seconds PATIENCE = 200e-6;

// Performs what can be performed: what one stream has done may be what another waits for.
static void progress() {
    for (bool moved = true; std::exchange(moved, false);)
        for (Stream* stream : streams)
            for (auto& waiting = stream->waiting; !waiting.empty(); waiting.pop_front(), moved = true)
                if (auto& [enqueued, work] = waiting.front(); !work(*stream, enqueued)) break;
}

// Only a communicator makes work wait, so that nothing has to be done before there is one.
void keep_progressing() {
    static std::once_flag once;
    auto forever = [] {
        for (;; sleep_until(now() + PATIENCE)) locked(progress);
    };
    std::call_once(once, [&] { std::thread(forever).detach(); });
}

// Sleep until `is_done`, which says when the thing happened, or a negative time for "not yet".
static void wait_until(auto is_done) {
    for (;; sleep_until(now() + PATIENCE))
        if (Seconds done_at = locked(is_done); done_at >= 0) return sleep_until(done_at);
}
void wait_for(Stream& stream) {
    wait_until([&] { return stream.waiting.empty() ? stream.done_at : -1; });
}
void wait_for_device() {
    for (Stream* stream : locked([] { return streams; }))
        if (stream->device == current_device()) wait_for(*stream);
}

// One record of an event. Recording it again makes a new one, which does not change what earlier waits wait for.
struct Record {
    Stream* stream;
    std::shared_ptr<Capture> capture;  // in a graph it is a place, which is never reached
    Seconds at = -1;                   // negative: not reached
};
using Event = std::shared_ptr<Record>;  // the last one; before it the event counts as reached
static cudaError_t status(const Event& event) {
    return !event || (event->at >= 0 && event->at <= now()) ? cudaSuccess : cudaErrorNotReady;
}

// The stream joins the capture, or work comes back to it.
static cudaError_t join(Stream& stream, const Record& place) {
    if (stream.capture && stream.capture != place.capture) return cudaErrorStreamCaptureMerge;
    stream.capture = place.capture;
    Capture& capture = *place.capture;
    capture.streams.insert(&stream);
    capture.unjoined.erase(place.stream);
    if (&stream != capture.origin) capture.unjoined.insert(&stream);
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned, int) {
    return call([&] { return hand_out(handle, new_stream()); });
}

EXPORT cudaError_t cudaStreamQuery(cudaStream_t handle) {
    return call([&] {
        Stream& stream = stream_of(handle);
        if (auto refused = std::max(check_device(), refuse_captured(stream))) return refused;
        return stream.waiting.empty() && stream.done_at <= now() ? cudaSuccess : cudaErrorNotReady;
    });
}

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    Stream& stream = stream_of(handle);
    return call_waiting(
        "cudaStreamSynchronize", [&] { return refuse_captured(stream); }, [&] { wait_for(stream); });
}

EXPORT cudaError_t cudaDeviceSynchronize() {
    return call_waiting("cudaDeviceSynchronize", refuse_unsafe, wait_for_device);
}

EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
    return call_device("event_host_us", [&] {
        Stream& stream = stream_of(handle);
        Event record = object_of<Event>(event);
        if (!record) return cudaSuccess;
        if (record->capture) return join(stream, *record);
        if (stream.capture) return stream.capture->broken = true, cudaErrorStreamCaptureIsolation;
        submit(stream, [record] {
            return [record](Stream& on, Seconds enqueued) {
                if (record->at >= 0) on.occupy(std::max(enqueued, record->at), 0);
                return record->at >= 0;
            };
        });
        return cudaSuccess;
    });
}

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned) { return hand_out(handle, new Event); }
EXPORT cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, 0); }
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) { return call([&] { delete &object_of<Event>(event); }); }
EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned) {
    return call_device("event_host_us", [&] {
        Stream& stream = stream_of(handle);
        auto made = object_of<Event>(event) = std::make_shared<Record>(Record{&stream, stream.capture});
        if (!stream.capture) submit(stream, 0, [made] { made->at = made->stream->done_at; });
    });
}

EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return cudaEventRecordWithFlags(event, stream, 0);
}

EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
    return call([&] {
        auto refused = std::max(check_device(), refuse_unsafe());
        return refused ? refused : status(object_of<Event>(event));
    });
}

// Not counted: the host waits for an event to stay at most two steps ahead (common/timing/steps.py), which costs
// nothing while the device is busy.
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    Event record;
    auto refused = call([&] {
        record = object_of<Event>(event);
        return record && record->capture ? cudaErrorCapturedEvent : refuse_unsafe();
    });
    if (!refused && record) wait_until([&] { return record->at; });
    return refused ? refused : check_device();
}

EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    return call([&] {
        Event &first = object_of<Event>(begin), &second = object_of<Event>(end);
        if (!first || !second) return cudaErrorInvalidResourceHandle;
        *milliseconds = float((second->at - first->at) * 1e3);
        return std::max(status(first), status(second));
    });
}
