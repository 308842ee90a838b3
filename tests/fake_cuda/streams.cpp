// Streams and events. A stream performs its work as soon as it is given, and its clock runs ahead by the time that
// the work takes; only work that waits for another rank, and what comes after it, is kept in a queue.
#include <algorithm>
#include <chrono>
#include <map>

#include "fake.h"

namespace fake {

Seconds now() {
    return std::chrono::duration<Seconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void sleep_until(Seconds time) {
    Seconds left = time - now();
    if (left > 0) std::this_thread::sleep_for(std::chrono::duration<Seconds>(left));
}

void spend_us(const char* key, double times) {
    Seconds end = now() + times * setting(key) * 1e-6;
    count("host_us", key, times * setting(key));
    while (now() < end) {
    }
}

static std::vector<Stream*>& streams() {
    static auto* all = new std::vector<Stream*>;
    return *all;
}

static Stream* new_stream() { return streams().emplace_back(new Stream); }

Stream& stream_of(cudaStream_t handle) {
    if (handle != nullptr && handle != cudaStreamLegacy && handle != cudaStreamPerThread)
        return *reinterpret_cast<Stream*>(handle);
    static auto* defaults = new std::map<int, Stream*>;  // one for each device
    Guard guard(lock());
    Stream*& stream = (*defaults)[current_device()];
    if (!stream) stream = new_stream();
    return *stream;
}

void Stream::occupy(Seconds from, Seconds duration) { done_at = std::max(done_at, from) + duration; }

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
    Work work = [=](Stream& on, Seconds enqueued) {
        on.occupy(enqueued, duration);
        return effect(), true;
    };
    submit(stream, [work] { return work; });
}

// Performs what can be performed: what one stream has done may be what another waits for.
static void progress() {
    for (bool moved = true; moved;) {
        moved = false;
        for (Stream* stream : streams())
            while (!stream->waiting.empty() && stream->waiting.front().second(*stream, stream->waiting.front().first)) {
                stream->waiting.pop_front();
                moved = true;
            }
    }
}

// How often work that waits for another rank is tried again: far below the milliseconds that the tests measure.
constexpr Seconds PATIENCE = 200e-6;

// Sleep until `is_done`, which says when the thing happened, or a negative time for "not yet".
static void wait_until(const std::function<Seconds()>& is_done) {
    for (;; sleep_until(now() + PATIENCE)) {
        Seconds done_at;
        {
            Guard guard(lock());
            progress();
            done_at = is_done();
        }
        if (done_at >= 0) return sleep_until(done_at);
    }
}

void wait_for(Stream& stream) {
    wait_until([&] { return stream.waiting.empty() ? stream.done_at : -1; });
}

void wait_for_device() {
    std::vector<Stream*> all;
    call([&] { all = streams(); });
    for (Stream* stream : all)
        if (stream->device == current_device()) wait_for(*stream);
}

void keep_progressing() {
    static std::once_flag once;
    std::call_once(once, [] {
        std::thread([] {
            for (;; sleep_until(now() + PATIENCE)) call(progress);
        }).detach();
    });
}

// One record of an event. Recording it again makes a new one, which does not change what earlier waits wait for.
struct Record {
    Stream* stream;
    std::shared_ptr<Capture> capture;
    Seconds at = -1;  // negative: not reached
};
struct Event {
    std::shared_ptr<Record> last;
    bool timed;
};
static Event* event_of(cudaEvent_t handle) { return reinterpret_cast<Event*>(handle); }

// An event that is new counts as reached.
static bool reached(const Event& event) { return !event.last || (event.last->at >= 0 && event.last->at <= now()); }

static cudaError_t wait_event(Stream& stream, const std::shared_ptr<Record>& record) {
    if (!record) return cudaSuccess;
    if (record->capture) {  // the stream joins the capture, or work comes back to it
        if (stream.capture && stream.capture != record->capture) return cudaErrorStreamCaptureMerge;
        Capture& capture = *record->capture;
        stream.capture = record->capture;
        capture.streams.insert(&stream);
        capture.unjoined.erase(record->stream);
        if (&stream != capture.origin) capture.unjoined.insert(&stream);
        return cudaSuccess;
    }
    if (stream.capture) {
        stream.capture->broken = true;
        return cudaErrorStreamCaptureIsolation;
    }
    submit(stream, [record]() -> Work {
        return [record](Stream& on, Seconds enqueued) {
            if (record->at < 0) return false;
            on.occupy(std::max(enqueued, record->at), 0);
            return true;
        };
    });
    return cudaSuccess;
}

}  // namespace fake

using namespace fake;

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned, int) {
    return call([&] { *handle = reinterpret_cast<cudaStream_t>(new_stream()); });
}
EXPORT cudaError_t cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithPriority(handle, 0, 0); }
EXPORT cudaError_t cudaStreamQuery(cudaStream_t handle) {
    if (auto error = check_device()) return error;
    return call([&] {
        Stream& stream = stream_of(handle);
        if (auto refused = refuse_captured(stream)) return refused;
        progress();
        return stream.waiting.empty() && stream.done_at <= now() ? cudaSuccess : cudaErrorNotReady;
    });
}
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    Stream& stream = stream_of(handle);
    auto refused = call([&] {
        count("synchronisations", "cudaStreamSynchronize");
        return refuse_captured(stream);
    });
    if (refused) return refused;
    wait_for(stream);
    return check_device();
}
EXPORT cudaError_t cudaDeviceSynchronize() {
    auto refused = call([] {
        count("synchronisations", "cudaDeviceSynchronize");
        return refuse_unsafe();
    });
    if (refused) return refused;
    wait_for_device();
    return check_device();
}
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    return call_device("event_host_us", [&] {
        return wait_event(stream_of(stream), event_of(event)->last);
    });
}

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
    *handle = reinterpret_cast<cudaEvent_t>(new Event{nullptr, !(flags & cudaEventDisableTiming)});
    return cudaSuccess;
}
EXPORT cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, 0); }
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) { return call([&] { delete event_of(event); }); }
EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned) {
    return call_device("event_host_us", [&] {
        Stream& stream = stream_of(handle);
        auto made = event_of(event)->last = std::make_shared<Record>(Record{&stream, stream.capture});
        // In a graph it is a place, which is never reached.
        if (!stream.capture) submit(stream, 0, [made] { made->at = made->stream->done_at; });
    });
}
EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return cudaEventRecordWithFlags(event, stream, 0);
}
EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (auto error = check_device()) return error;
    return call([&] {
        if (auto refused = refuse_unsafe()) return refused;
        progress();
        return reached(*event_of(event)) ? cudaSuccess : cudaErrorNotReady;
    });
}
// Not counted: the host waits for an event to stay at most two steps ahead (common/timing/steps.py), which costs
// nothing while the device is busy.
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    std::shared_ptr<Record> record;
    auto refused = call([&] {
        record = event_of(event)->last;
        auto unsafe = refuse_unsafe();
        return !unsafe && record && record->capture ? cudaErrorCapturedEvent : unsafe;
    });
    if (refused) return refused;
    if (record) wait_until([&] { return record->at; });
    return check_device();
}
EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    return call([&] {
        Event &first = *event_of(begin), &second = *event_of(end);
        if (!first.last || !second.last || !first.timed || !second.timed) return cudaErrorInvalidResourceHandle;
        if (!reached(first) || !reached(second)) return cudaErrorNotReady;
        *milliseconds = float((second.last->at - first.last->at) * 1e3);
        return cudaSuccess;
    });
}
