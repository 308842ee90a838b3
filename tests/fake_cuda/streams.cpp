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

void spend_us(const char* key) {
    count("host_us", key, setting(key));
    Seconds end = now() + setting(key) * 1e-6;
    while (now() < end) {
    }
}

static std::vector<Stream*>& streams() {
    static auto* all = new std::vector<Stream*>;
    return *all;
}

static Stream* new_stream() {
    auto* stream = new Stream;
    stream->device = current_device();
    streams().push_back(stream);
    return stream;
}

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

void submit_busy(Stream& stream, Seconds duration) {
    submit(stream, [duration] {
        return [duration](Stream& on, Seconds enqueued) {
            on.occupy(enqueued, duration);
            return true;
        };
    });
}

// What one stream has done may be what another waits for.
void progress() {
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
    for (;;) {
        Seconds done_at;
        {
            Guard guard(lock());
            progress();
            done_at = is_done();
        }
        if (done_at >= 0) return sleep_until(done_at);
        sleep_until(now() + PATIENCE);
    }
}

void wait_for(Stream& stream) {
    wait_until([&] { return stream.waiting.empty() ? stream.done_at : -1; });
}

void wait_for_device() {
    std::vector<Stream*> all;
    {
        Guard guard(lock());
        all = streams();
    }
    for (Stream* stream : all)
        if (stream->device == current_device()) wait_for(*stream);
}

void keep_progressing() {
    static bool started = [] {
        std::thread([] {
            for (;; sleep_until(now() + PATIENCE)) {
                Guard guard(lock());
                progress();
            }
        }).detach();
        return true;
    }();
    (void)started;
}

// One record of an event. Recording it again makes a new one, which does not change what earlier waits wait for.
struct Record {
    Seconds at = -1;  // negative: not reached
    std::shared_ptr<Capture> capture;
    Stream* stream;
};
struct Event {
    std::shared_ptr<Record> last;
    bool timed = true;
};
static Event* event_of(cudaEvent_t handle) { return reinterpret_cast<Event*>(handle); }

// An event that is new counts as reached.
static bool reached(const Event& event) { return !event.last || (event.last->at >= 0 && event.last->at <= now()); }

static cudaError_t record(cudaEvent_t handle, cudaStream_t on) {
    if (auto error = check_device()) return error;
    spend_us("event_host_us");
    Guard guard(lock());
    Stream& stream = stream_of(on);
    auto made = std::make_shared<Record>();
    made->stream = &stream;
    made->capture = stream.capture;
    event_of(handle)->last = made;
    count("events", "cudaEventRecord");
    if (stream.capture) return cudaSuccess;  // a place in the graph; it is never reached
    submit(stream, [made] {
        return [made](Stream& on, Seconds enqueued) {
            on.occupy(enqueued, 0);
            made->at = on.done_at;
            return true;
        };
    });
    return cudaSuccess;
}

static cudaError_t wait_event(Stream& stream, const std::shared_ptr<Record>& record) {
    if (!record) return cudaSuccess;
    if (record->capture) {  // the stream joins the capture, or work comes back to it
        if (stream.capture && stream.capture != record->capture) return failed(cudaErrorStreamCaptureMerge);
        Capture& capture = *record->capture;
        stream.capture = record->capture;
        capture.streams.insert(&stream);
        capture.unjoined.erase(record->stream);
        if (&stream != capture.origin) capture.unjoined.insert(&stream);
        return cudaSuccess;
    }
    if (stream.capture) {
        stream.capture->broken = true;
        return failed(cudaErrorStreamCaptureIsolation);
    }
    submit(stream, [record] {
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
    Guard guard(lock());
    *handle = reinterpret_cast<cudaStream_t>(new_stream());
    return cudaSuccess;
}
EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
    return cudaStreamCreateWithPriority(handle, flags, 0);
}
EXPORT cudaError_t cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithPriority(handle, 0, 0); }
EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) { return *priority = 0, cudaSuccess; }
EXPORT cudaError_t cudaStreamQuery(cudaStream_t handle) {
    if (auto error = check_device()) return error;
    Guard guard(lock());
    Stream& stream = stream_of(handle);
    if (auto error = refuse_captured(stream)) return error;
    progress();
    return stream.waiting.empty() && stream.done_at <= now() ? cudaSuccess : cudaErrorNotReady;
}
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    Stream& stream = stream_of(handle);
    {
        Guard guard(lock());
        count("synchronisations", "cudaStreamSynchronize");
        if (auto error = refuse_captured(stream)) return error;
    }
    wait_for(stream);
    return check_device();
}
EXPORT cudaError_t cudaDeviceSynchronize() {
    {
        Guard guard(lock());
        count("synchronisations", "cudaDeviceSynchronize");
        if (auto error = refuse_unsafe()) return error;
    }
    wait_for_device();
    return check_device();
}
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
    if (auto error = check_device()) return error;
    spend_us("event_host_us");
    Guard guard(lock());
    count("events", "cudaStreamWaitEvent");
    return wait_event(stream_of(handle), event_of(event)->last);
}

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
    auto* event = new Event;
    event->timed = !(flags & cudaEventDisableTiming);
    *handle = reinterpret_cast<cudaEvent_t>(event);
    return cudaSuccess;
}
EXPORT cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, 0); }
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    Guard guard(lock());
    delete event_of(handle);
    return cudaSuccess;
}
EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return record(event, stream); }
EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
    return record(event, stream);
}
EXPORT cudaError_t cudaEventQuery(cudaEvent_t handle) {
    if (auto error = check_device()) return error;
    Guard guard(lock());
    if (auto error = refuse_unsafe()) return error;
    progress();
    return reached(*event_of(handle)) ? cudaSuccess : cudaErrorNotReady;
}
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    std::shared_ptr<Record> record;
    {
        Guard guard(lock());
        if (auto error = refuse_unsafe()) return error;
        record = event_of(handle)->last;
        // The host waits for an event to stay at most two steps ahead (common/timing/steps.py), which costs nothing
        // while the device is busy: counted apart.
        count("events", "cudaEventSynchronize");
    }
    if (record && record->capture) return failed(cudaErrorCapturedEvent);
    if (record) wait_until([&] { return record->at; });
    return check_device();
}
EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    Guard guard(lock());
    Event &first = *event_of(begin), &second = *event_of(end);
    if (!first.last || !second.last || !first.timed || !second.timed) return failed(cudaErrorInvalidResourceHandle);
    if (!reached(first) || !reached(second)) return failed(cudaErrorNotReady);
    *milliseconds = float((second.last->at - first.last->at) * 1e3);
    return cudaSuccess;
}
