/* CRC-32C (Castagnoli) by carry-less multiplication of whole vectors (Gopal et al. 2009, "Fast CRC Computation for
 * Generic Polynomials Using PCLMULQDQ Instruction"), called through ctypes, which releases the interpreter's lock.
 *
 * 64 bytes of message that are followed by D bits count like their product with x^D mod P added to the 64 bytes D
 * bits later. So 256 bytes are folded onto the next 256 until 16 are left, whose checksum the processor's own
 * instruction computes. FOLD(D): x^(D+32) and x^(D-32) mod P for the two halves of each 16 bytes, bit-reversed, times
 * two; tests/unit/common/formats/test_crc32c.py computes them. */
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define WIDE __attribute__((target("avx512f,avx512dq,vpclmulqdq,pclmul,sse4.2")))

#define PIECE (1 << 18) /* bytes, a part of a level-2 cache */

#define FOLD_2048 0xdcb17aa4, 0xb9e02b86
#define FOLD_512 0x740eef02, 0x9e4addf8
#define FOLD_128 0xf20c0dfe, 0x14cd00bd6

WIDE static inline __m512i both(int64_t low, int64_t high) {
    return _mm512_set_epi64(high, low, high, low, high, low, high, low);
}

WIDE static inline __m512i folded(__m512i sum, __m512i by, __m512i next) {
    __m512i low = _mm512_clmulepi64_epi128(sum, by, 0x00), high = _mm512_clmulepi64_epi128(sum, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96);
}

/* The checksum's state after `bytes` of `data`, from the state before them. */
WIDE static uint32_t wide(uint32_t state, const uint8_t *data, int64_t bytes) {
    if (bytes >= 256) {
        __m512i sums[4], by = both(FOLD_2048);
        for (int i = 0; i < 4; i++) sums[i] = _mm512_loadu_si512(data + 64 * i);
        sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
        for (data += 256, bytes -= 256; bytes >= 256; data += 256, bytes -= 256)
            for (int i = 0; i < 4; i++) sums[i] = folded(sums[i], by, _mm512_loadu_si512(data + 64 * i));
        by = both(FOLD_512);
        for (int i = 0; i < 3; i++) sums[i + 1] = folded(sums[i], by, sums[i + 1]);
        uint64_t left[8];
        _mm512_storeu_si512(left, sums[3]);
        __m128i sum = _mm_loadu_si128((const __m128i *)left), fold = _mm512_castsi512_si128(both(FOLD_128));
        for (int i = 1; i < 4; i++) {
            __m128i low = _mm_clmulepi64_si128(sum, fold, 0x00), high = _mm_clmulepi64_si128(sum, fold, 0x11);
            sum = _mm_xor_si128(_mm_xor_si128(low, high), _mm_loadu_si128((const __m128i *)left + i));
        }
        state = (uint32_t)_mm_crc32_u64(_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(sum)),
                                        (uint64_t)_mm_extract_epi64(sum, 1));
    }
    for (; bytes >= 8; data += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        state = (uint32_t)_mm_crc32_u64(state, word);
    }
    for (; bytes > 0; data++, bytes--) state = _mm_crc32_u8(state, *data);
    return state;
}

/* Whether the processor has what the function below needs. */
int mlhpc_has_crc32c(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("sse4.2");
}

uint32_t mlhpc_crc32c(uint32_t crc, const void *data, int64_t bytes) { return ~wide(~crc, data, bytes); }

/* Reads `bytes` of a file from `offset`, and continues the checksum over each piece while it is in the cache. Returns
 * how many could be read. */
int64_t mlhpc_read_crc32c(int fd, int64_t offset, uint8_t *data, int64_t bytes, uint32_t *crc) {
    int64_t done = 0;
    while (done < bytes) {
        int64_t piece = bytes - done < PIECE ? bytes - done : PIECE;
        ssize_t count = pread(fd, data + done, (size_t)piece, offset + done);
        if (count <= 0) break;
        *crc = ~wide(~*crc, data + done, count);
        done += count;
    }
    return done;
}
#else
int mlhpc_has_crc32c(void) { return 0; }
#endif
