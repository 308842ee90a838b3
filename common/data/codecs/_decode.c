/* The decoders of a benchmark's own codecs, and the pass over samples without one; called through ctypes, which
 * releases the interpreter's lock.
 *
 * The callers describe the formats (cosmoflow/data/codec.py, deepcam/data/delta.py); these are compared with their
 * counterparts in NumPy, bit for bit but for the payload of a NaN. Callers have checked every length and offset against
 * the sections that are there: only keys are checked here. Compile with -ffp-contract=off, or values differ by a
 * rounding. */
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* One binary for all nodes: the loader picks the copy that the processor can run. */
#if defined(__x86_64__) && defined(__linux__) && !defined(__clang__) && __GNUC__ >= 12
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif
#define INLINE static inline __attribute__((always_inline))

/* Samples may be records of a larger file, and arrays views of one: at any offset, of any type. */
#define ANYWHERE __attribute__((aligned(1), may_alias))
typedef uint16_t u16 ANYWHERE;
typedef uint32_t u32 ANYWHERE;
typedef uint64_t u64 ANYWHERE;
typedef struct { uint64_t low, high; } __attribute__((packed, may_alias)) u128;
typedef float f32 ANYWHERE;

/* out[i] = table[keys[i]] for i in [0, n). Returns -1, or the position of the first key that is not below `groups`,
 * before which all is written. A block of keys is checked while it is in the cache. */
#define GATHER(name, key_t, item_t)                                                                       \
    CLONES static int64_t name(const key_t *keys, int64_t n, const item_t *table, int64_t groups,         \
                               item_t *out) {                                                             \
        for (int64_t begin = 0; begin < n; begin += 4096) {                                               \
            int64_t end = begin + 4096 < n ? begin + 4096 : n;                                            \
            key_t most = 0;                                                                               \
            for (int64_t i = begin; i < end; i++) most = keys[i] > most ? keys[i] : most;                 \
            if ((int64_t)most >= groups) {                                                                \
                for (int64_t i = begin; i < end; i++)                                                     \
                    if ((int64_t)keys[i] >= groups) return i;                                             \
            }                                                                                             \
            for (int64_t i = begin; i < end; i++) out[i] = table[keys[i]];                                \
        }                                                                                                 \
        return -1;                                                                                        \
    }

GATHER(gather_8_2, uint8_t, u16)
GATHER(gather_16_2, u16, u16)
GATHER(gather_8_4, uint8_t, u32)
GATHER(gather_16_4, u16, u32)
GATHER(gather_8_8, uint8_t, u64)
GATHER(gather_16_8, u16, u64)
GATHER(gather_8_16, uint8_t, u128)
GATHER(gather_16_16, u16, u128)

int64_t mlhpc_gather(const void *keys, int key_bytes, int64_t n, const void *table, int64_t groups,
                     int item_bytes, void *out) {
    int wide = key_bytes == 2;
    switch (item_bytes) {
    case 2: return wide ? gather_16_2(keys, n, table, groups, out) : gather_8_2(keys, n, table, groups, out);
    case 4: return wide ? gather_16_4(keys, n, table, groups, out) : gather_8_4(keys, n, table, groups, out);
    case 8: return wide ? gather_16_8(keys, n, table, groups, out) : gather_8_8(keys, n, table, groups, out);
    case 16: return wide ? gather_16_16(keys, n, table, groups, out) : gather_8_16(keys, n, table, groups, out);
    }
    return -2;
}

/* float32 to float16, rounded to nearest even; NaN stays NaN but loses its payload. Without branches, so that it is
 * vectorised. */
INLINE uint16_t to_half(float value) {
    uint32_t bits, sign, small, normal;
    memcpy(&bits, &value, 4);
    sign = (bits >> 16) & 0x8000;
    bits &= 0x7fffffff;
    /* Below 2^-14: adding 0.5 lines the bits up at the position of float16's smallest denormal number. */
    float shifted;
    memcpy(&shifted, &bits, 4);
    shifted += 0.5f;
    memcpy(&small, &shifted, 4);
    small -= 0x3f000000;
    normal = (bits + 0xc8000fff + ((bits >> 13) & 1)) >> 13;
    uint32_t special = bits > 0x7f800000 ? 0x7e00 : 0x7c00;
    uint32_t half = bits >= 0x47800000 ? special : bits < 0x38800000 ? small : normal;
    return (uint16_t)(half | sign);
}

INLINE uint16_t to_bfloat(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}

INLINE int finite(const f32 *values, int64_t n) {
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, 4);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return most < 0x7f800000;
}

/* out[r][i] = (in[r][i] - shift[i]) * scale[i] for `rows` rows of `n` values; `kind` 0 float32, 1 float16, 2 bfloat16.
 * Returns -1, or the first row with a value that is not finite, which is left as it is, like those after it. */
CLONES int64_t mlhpc_normalise(const f32 *in, int64_t rows, int64_t n, const f32 *shift, const f32 *scale, int kind,
                               void *out) {
    for (int64_t r = 0; r < rows; r++, in += n) {
        if (!finite(in, n)) return r;
        int64_t i = 0;
        f32 *row = (f32 *)out + r * n;
        u16 *halves = (u16 *)out + r * n;
        if (kind == 1)
            for (; i < n; i++) halves[i] = to_half((in[i] - shift[i]) * scale[i]);
        else if (kind == 2)
            for (; i < n; i++) halves[i] = to_bfloat((in[i] - shift[i]) * scale[i]);
#ifdef __SSE2__
        /* Past the caches: the sample exceeds them, and what is overwritten need not be fetched. */
        for (; i < n && (uintptr_t)(row + i) % 16; i++) row[i] = (in[i] - shift[i]) * scale[i];
        for (; i + 4 <= n; i += 4) {
            __m128 moved = _mm_sub_ps(_mm_loadu_ps((const float *)in + i), _mm_loadu_ps((const float *)shift + i));
            _mm_stream_ps((float *)row + i, _mm_mul_ps(moved, _mm_loadu_ps((const float *)scale + i)));
        }
#endif
        for (; i < n; i++) row[i] = (in[i] - shift[i]) * scale[i];
    }
#ifdef __SSE2__
    _mm_sfence();
#endif
    return -1;
}

typedef struct {
    int64_t rows, columns, channels;
    const uint8_t *kinds;       /* [channels, rows] */
    const int64_t *first;       /* [channels, rows]: index of the line's first pivot, or of its raw values' row */
    const int64_t *coded;       /* [channels, rows]: index of the line's row of codes */
    const f32 *pivots;
    const int8_t *units;
    const uint8_t *codes;       /* [coded lines, columns] */
    const f32 *raw;             /* [raw lines, columns] */
    const int32_t *differences; /* [2, 256]: the logarithmic and the linear code */
    const f32 *shift, *scale;   /* [channels] each; NULL: values stay physical */
} delta;

/* Line `l` of a sample, physical. */
INLINE void decode_line(const delta *d, int64_t l, int32_t *sums, float *out) {
    int64_t columns = d->columns, first = d->first[l];
    int kind = d->kinds[l];
    if (kind == 1) {
        memcpy(out, d->raw + first * columns, 4 * columns);
        return;
    }
    if (kind == 0) {
        float value = d->pivots[first];
        for (int64_t i = 0; i < columns; i++) out[i] = value;
        return;
    }
    const uint8_t *codes = d->codes + d->coded[l] * columns;
    int64_t length = (int64_t)1 << (kind >> 1);
    const int32_t *difference = d->differences + 256 * (kind & 1);
    for (int64_t begin = 0, segment = first; begin < columns; begin += length, segment++) {
        int64_t end = begin + length < columns ? begin + length : columns;
        int32_t sum = 0;
        for (int64_t i = begin; i < end; i++) sums[i] = sum += difference[codes[i]];
        uint32_t bits = (uint32_t)(d->units[segment] + 127) << 23;
        float unit, pivot = d->pivots[segment];
        memcpy(&unit, &bits, 4);
        for (int64_t i = begin; i < end; i++) out[i] = pivot + (float)sums[i] * unit;
    }
}

#define TRANSPOSE(item_t)                                                                                  \
    for (int64_t begin = 0; begin < columns; begin += 64) {                                                \
        int64_t end = begin + 64 < columns ? begin + 64 : columns;                                         \
        for (int64_t c = 0; c < channels; c++) {                                                           \
            const item_t *from = (const item_t *)lines + c * columns;                                      \
            item_t *to = (item_t *)out + r * columns * channels + c;                                       \
            for (int64_t x = begin; x < end; x++) to[x * channels] = from[x];                              \
        }                                                                                                  \
    }

/* Rows [first_row, last_row) of a sample into `out`, the whole array: [rows, columns, channels], or [channels, rows,
 * columns] if `channels_first`; `kind` 0 float32, 1 float16, 2 bfloat16. `scratch` has room for
 * (channels + 2) * columns floats. */
CLONES void mlhpc_delta(const delta *d, int64_t first_row, int64_t last_row, int kind, int channels_first,
                        void *out, float *scratch) {
    int64_t columns = d->columns, channels = d->channels;
    int32_t *sums = (int32_t *)scratch;
    float *line = scratch + columns;
    void *lines = scratch + 2 * columns;
    for (int64_t r = first_row; r < last_row; r++) {
        for (int64_t c = 0; c < channels; c++) {
            int64_t l = c * d->rows + r;
            decode_line(d, l, sums, line);
            if (d->scale) {
                float shift = d->shift[c], scale = d->scale[c];
                for (int64_t i = 0; i < columns; i++) line[i] = (line[i] - shift) * scale;
            }
            int64_t at = channels_first ? l * columns : c * columns;
            void *to = channels_first ? out : lines;
            if (kind == 0)
                memcpy((char *)to + 4 * at, line, 4 * columns);
            else if (kind == 1)
                for (int64_t i = 0; i < columns; i++) ((u16 *)to)[at + i] = to_half(line[i]);
            else
                for (int64_t i = 0; i < columns; i++) ((u16 *)to)[at + i] = to_bfloat(line[i]);
        }
        if (channels_first) continue;
        if (kind == 0) {
            TRANSPOSE(u32)
        } else {
            TRANSPOSE(u16)
        }
    }
}
