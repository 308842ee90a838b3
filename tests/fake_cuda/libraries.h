// What library.py's functions of cuBLAS, cuDNN and the others use. Apart from fake.h, since CUDA's own headers
// declare some of those functions with parameters that they do not have there.
#pragma once
#define EXPORT extern "C" __attribute__((visibility("default")))
struct Handle {
    void* stream = nullptr;  // all that is kept of it
};
int compute(Handle* handle, const char* function);  // counts as one kernel
int refuse(const char* function);
