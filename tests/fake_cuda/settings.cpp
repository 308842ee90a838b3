// The device model: lines `key=value` of the file that FAKE_CUDA_DEVICE names (library.py writes it), then those of
// FAKE_CUDA_SET, separated by semicolons.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "fake.h"

namespace fake {

static const std::map<std::string, std::string>& settings() {
    static const auto* all = [] {
        const char *path = getenv("FAKE_CUDA_DEVICE"), *set = getenv("FAKE_CUDA_SET");
        std::ifstream file(path ? path : "");
        if (!file) {
            fprintf(stderr, "FAKE_CUDA_DEVICE=%s: no such device model\n", path ? path : "");
            abort();
        }
        std::string changes = set ? set : "";
        std::replace(changes.begin(), changes.end(), ';', '\n');
        std::stringstream lines;
        lines << file.rdbuf() << changes;
        auto* read = new std::map<std::string, std::string>;
        for (std::string key, value; std::getline(lines, key, '=') && std::getline(lines, value);) (*read)[key] = value;
        return read;
    }();
    return *all;
}

double setting(const std::string& key, double otherwise) {
    auto found = settings().find(key);
    return found == settings().end() ? otherwise : strtod(found->second.c_str(), nullptr);
}

std::string text(const std::string& key) { return settings().at(key); }

// `kernel_us`, or the value of the last key `kernel_us PART` whose part the kernel's name contains.
Seconds kernel_time(const std::string& kernel, int device) {
    const std::string prefix = "kernel_us ";
    double us = setting("kernel_us");
    for (auto& [key, value] : settings())
        if (key.compare(0, prefix.size(), prefix) == 0 && kernel.find(key.substr(prefix.size())) != std::string::npos)
            us = strtod(value.c_str(), nullptr);
    bool slow = physical_device(device) == setting("slow_device", -1);
    return us * 1e-6 * (slow ? setting("slow_factor", 1) : 1);
}

}  // namespace fake
