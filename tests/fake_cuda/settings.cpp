// The device model: words `key=value`, separated by semicolons, of FAKE_CUDA_DEVICE (library.py reads them from
// devices/*.toml), then of FAKE_CUDA_SET, which change it.
#include <sstream>

#include "fake.h"

static std::map<std::string, std::string> read() {
    std::map<std::string, std::string> found;
    for (const char* variable : {"FAKE_CUDA_DEVICE", "FAKE_CUDA_SET"}) {
        const char* words = getenv(variable);
        std::istringstream left(words ? words : "");
        for (std::string key, value; std::getline(left, key, '=') && std::getline(left, value, ';');)
            found[key] = value;
    }
    if (!found.count("name")) fputs("FAKE_CUDA_DEVICE: no device model\n", stderr), abort();
    return found;
}

static const auto& settings() {
    static const auto& all = *new auto(read());
    return all;
}

double setting(const std::string& key, double otherwise) {
    auto found = settings().find(key);
    return found == settings().end() ? otherwise : strtod(found->second.c_str(), nullptr);
}
std::string text(const std::string& key) { return settings().at(key); }
// `kernel_us`, or the value of the last key `kernel_us PART` whose part the kernel's name contains.
Seconds kernel_time(const std::string& kernel) {
    const std::string prefix = "kernel_us ";
    double us = setting("kernel_us");
    for (auto& [key, value] : settings())
        if (key.starts_with(prefix) && kernel.find(key.substr(prefix.size())) != std::string::npos) us = setting(key);
    return us * 1e-6 * (current_device() == setting("slow_device", -1) ? setting("slow_factor") : 1);
}
