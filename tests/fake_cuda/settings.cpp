// The device model: lines `key = value` of the file that FAKE_CUDA_DEVICE names (a subset of TOML), then those of
// FAKE_CUDA_SET, separated by semicolons.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "fake.h"

namespace fake {

static std::string stripped(std::string word) {
    const char* blank = " \t\"\r";
    size_t begin = word.find_first_not_of(blank);
    if (begin == std::string::npos) return "";
    return word.substr(begin, word.find_last_not_of(blank) - begin + 1);
}

static void read(std::istream& lines, char separator, std::map<std::string, std::string>& into) {
    for (std::string line; std::getline(lines, line, separator);) {
        line = line.substr(0, line.find('#'));
        size_t equals = line.find('=');
        if (equals != std::string::npos) into[stripped(line.substr(0, equals))] = stripped(line.substr(equals + 1));
    }
}

static const std::map<std::string, std::string>& settings() {
    static const auto* all = [] {
        auto* read_in = new std::map<std::string, std::string>;
        const char* path = getenv("FAKE_CUDA_DEVICE");
        std::ifstream file(path ? path : "");
        if (!file) {
            fprintf(stderr, "FAKE_CUDA_DEVICE=%s: no such device model\n", path ? path : "");
            abort();
        }
        read(file, '\n', *read_in);
        const char* changes = getenv("FAKE_CUDA_SET");
        std::istringstream more(changes ? changes : "");
        read(more, ';', *read_in);
        return read_in;
    }();
    return *all;
}

double setting(const std::string& key, double otherwise) {
    auto found = settings().find(key);
    return found == settings().end() ? otherwise : strtod(found->second.c_str(), nullptr);
}

std::string text(const std::string& key) { return settings().at(key); }

// `kernel_us`, or the value of the first key `kernel_us PART` whose part the kernel's name contains.
Seconds kernel_time(const std::string& kernel, int device) {
    const std::string prefix = "kernel_us ";
    double us = setting("kernel_us");
    for (auto& [key, value] : settings())
        if (key.compare(0, prefix.size(), prefix) == 0 && kernel.find(key.substr(prefix.size())) != std::string::npos)
            us = strtod(value.c_str(), nullptr);
    if (physical_device(device) == setting("slow_device", -1)) us *= setting("slow_factor", 1);
    return us * 1e-6;
}

}  // namespace fake
