// What happened, as JSON in the file that FAKE_CUDA_REPORT names ("%d" in it: the number of the device), at the end of
// a process that has used a device. The ranges that a run marks for a vendor's profiler tell when `run` began.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include <nvtx3/nvToolsExt.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fake.h"

namespace fake {

using Counts = std::map<std::string, std::map<std::string, double>>;
static Counts& counts() {
    static auto* all = new Counts;
    return *all;
}
static Counts* before_run = nullptr;

void count(const char* section, const std::string& name, double amount) {
    Guard guard(lock());
    counts()[section][name] += amount;
}

static pid_t process = 0;  // that has allocated memory: not a fork of it

void record_peak(const char* name, double value) {
    Guard guard(lock());
    process = getpid();
    double& peak = counts()["peak"][name];
    if (value > peak) peak = value;
}

// Of `all` what is not in `before`.
static std::string json(const Counts& all, const Counts& before = {}) {
    std::ostringstream out;
    out.precision(15);
    const char* next_section = "{";
    for (auto& [section, names] : all) {
        out << std::exchange(next_section, ", ") << "\"" << section << "\": {";
        const char* next = "";
        for (auto& [name, amount] : names) {
            double more = amount;
            if (section != "peak" && before.count(section) && before.at(section).count(name))
                more -= before.at(section).at(name);
            if (more || before.empty()) out << std::exchange(next, ", ") << "\"" << name << "\": " << more;
        }
        out << "}";
    }
    return out.str() + "}";
}

static std::string report() {
    Guard guard(lock());
    std::string text = "{\"total\": " + json(counts());
    if (before_run) text += ", \"since_run_start\": " + json(counts(), *before_run);
    return text + "}";
}

__attribute__((destructor)) static void write_report() {
    const char* path = getenv("FAKE_CUDA_REPORT");
    if (!path || !counts().count("peak") || getpid() != process) return;
    std::string name = path;
    size_t place = name.find("%d");
    if (place != std::string::npos) name.replace(place, 2, std::to_string(physical_device(current_device())));
    std::ofstream(name) << report() << "\n";
}

static int NVTX_API range_push(const char* name) {
    Guard guard(lock());
    if (!strcmp(name, "run")) before_run = new Counts(counts());
    return 0;
}

}  // namespace fake

// Ranks end by this (common/ranks/launch.py), which runs no destructor.
EXPORT void _exit(int status) {
    fake::write_report();
    syscall(SYS_exit_group, status);
    __builtin_unreachable();
}

// The same text at any time, for programs that call it through ctypes.
EXPORT const char* fake_cuda_report() {
    static thread_local std::string text;
    text = fake::report();
    return text.c_str();
}

// NVTX calls this in the library that NVTX_INJECTION64_PATH names, when the first range is opened.
EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t tables) {
    auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(tables(NVTX_ETID_CALLBACKS));
    NvtxFunctionTable functions = nullptr;
    unsigned number = 0;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &number)) return 0;
    *functions[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(fake::range_push);
    return 1;
}
