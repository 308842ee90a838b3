// The device model: words `key=value`, separated by semicolons, of FAKE_CUDA_DEVICE (library.py reads them from
// devices/*.toml), then of FAKE_CUDA_SET, which change it.
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "fake.h"

static const std::map<std::string, std::string>& settings() {
    static const auto& all = *[] {
        auto* found = new std::map<std::string, std::string>;
        for (const char* variable : {"FAKE_CUDA_DEVICE", "FAKE_CUDA_SET"}) {
            const char* value = getenv(variable);
            std::istringstream words(value ? value : "");
            for (std::string word; std::getline(words, word, ';');) {
                size_t equals = word.find('=');
                if (equals != std::string::npos) (*found)[word.substr(0, equals)] = word.substr(equals + 1);
            }
        }
        if (!found->count("name")) fputs("FAKE_CUDA_DEVICE: no device model\n", stderr), abort();
        return found;
    }();
    return all;
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
        if (key.starts_with(prefix) && kernel.find(key.substr(prefix.size())) != std::string::npos)
            us = setting(key);
    bool slow = device == setting("slow_device", -1);
    return us * 1e-6 * (slow ? setting("slow_factor", 1) : 1);
}
