/* A convolution of 3³ taps followed by max pooling over 2³ voxels, for CPUs: the pooling, and both gradients.
 *
 * Seven of eight voxels that the pooling reads get no gradient. Frameworks write these zeros into an array as large
 * as the convolution's output and multiply all of them; here the gradient of a pooled voxel is passed straight to the 27
 * voxels from which its largest value was computed. This takes an eighth of the arithmetic of both gradients.
 *
 * Arrays are channels last: x [samples, d, h, w, channels], pooled and its gradient [samples, d/2, h/2, w/2, filters],
 * float32 or bfloat16 (`half`). `chosen`, uint8 in the shape of pooled, says which of the eight voxels was the largest:
 * 4·(d % 2) + 2·(h % 2) + w % 2. Weights and their gradient are float32 [chunks, filters, 9, row]: channels in chunks of
 * at most 16, and for each of the 9 lines of taps, the channels of its 3 taps, padded to whole vectors (with zeros in
 * weights, with arbitrary values in gradients). All sums are float32. cosmoflow/cpu/pooled.py calls these functions in
 * threads, each with its own planes: plane p is the pooled plane p % (d/2) of sample p / (d/2). */
#include <stdint.h>
#include <string.h>

/* setup.py compiles this file for each kind of processor. WIDTH: numbers per vector. HELD: number of vectors of sums that
 * fit into the registers together with their operands. Vectors wider than the processor's also work, but GCC keeps them in
 * memory. */
#if defined(__AVX512F__)
enum { WIDTH = 16, HELD = 27 };
#elif defined(__AVX2__)
enum { WIDTH = 8, HELD = 12 };
#else
enum { WIDTH = 4, HELD = 12 };
#endif
#define INLINE static inline __attribute__((always_inline))

enum { CHUNK = 16, ROWS = 2, COLUMNS = 8, VOXELS = ROWS * COLUMNS }; /* a tile of pooled voxels: 28 KB of x, L1 */
enum { PLANES = 4, LINES = 2 * ROWS + 2, LINE = (2 * COLUMNS + 2) * CHUNK };
enum { MOST_FILTERS = 512 };

typedef float lanes __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t whole __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(2 * WIDTH), aligned(2), may_alias));

typedef struct {
    int64_t depth, height, width, channels, filters; /* of x */
    const void *x;
    void *pooled; /* in a backward pass, its gradient */
    uint8_t *chosen;
    int half;
} layer;

typedef struct {
    float x[PLANES * LINES * LINE];
    float gradient[MOST_FILTERS * VOXELS];
    int32_t offset[MOST_FILTERS * VOXELS]; /* position in x of the first voxel under the filter */
} scratch;

INLINE float widened(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE lanes load(const void *from, int64_t at, int half) {
    if (!half) return *(const lanes *)((const float *)from + at);
    whole bits = __builtin_convertvector(*(const halves *)((const uint16_t *)from + at), whole) << 16;
    return (lanes)bits;
}

INLINE float load_one(const void *from, int64_t at, int half) {
    return half ? widened(((const uint16_t *)from)[at]) : ((const float *)from)[at];
}

/* Finds the largest of the eight voxels that begin at `x`: the first of equal ones, or NaN if there is one, as in
 * PyTorch's pooling. Has no branches, so that it is vectorised. */
#define POOL(name, value_t, number)                                                                            \
    INLINE void name(const value_t *restrict x, value_t *restrict pooled, uint8_t *restrict chosen,            \
                     const int64_t *steps, int64_t filters) {                                                  \
        for (int64_t f = 0; f < filters; f++) {                                                                \
            value_t best = x[f];                                                                               \
            int at = 0;                                                                                        \
            _Pragma("GCC unroll 7") for (int k = 1; k < 8; k++) {                                              \
                value_t value = x[steps[k] + f];                                                               \
                int larger = (number(value) > number(best)) | (number(value) != number(value));                \
                best = larger ? value : best;                                                                  \
                at = larger ? k : at;                                                                          \
            }                                                                                                  \
            pooled[f] = best;                                                                                  \
            chosen[f] = (uint8_t)at;                                                                           \
        }                                                                                                      \
    }

POOL(pool_floats, float, (float))
POOL(pool_halves, uint16_t, widened)

void mlhpc_pool(const layer *l, int64_t begin, int64_t end, int64_t step) {
    int64_t d = l->depth / 2, h = l->height / 2, w = l->width / 2, f = l->filters, steps[8];
    for (int k = 0; k < 8; k++) steps[k] = (((k >> 2) * l->height + (k >> 1 & 1)) * l->width + (k & 1)) * f;
    for (int64_t plane = begin; plane < end; plane += step)
        for (int64_t i = 0; i < h * w; i++) {
            int64_t line = (plane / d * l->depth + 2 * (plane % d)) * l->height + 2 * (i / w);
            int64_t from = (line * l->width + 2 * (i % w)) * f, to = (plane * h * w + i) * f;
            if (l->half) {
                const uint16_t *x = l->x;
                uint16_t *pooled = l->pooled;
                pool_halves(x + from, pooled + to, l->chosen + to, steps, f);
            } else {
                const float *x = l->x;
                float *pooled = l->pooled;
                pool_floats(x + from, pooled + to, l->chosen + to, steps, f);
            }
        }
}

/* Copies the voxels of x that a tile's filters read, `taken` channels from `channel` on, with zeros around the volume;
 * or, with `add`, adds the tile to float32 x, which the caller owns. */
INLINE void copy_tile(const layer *l, scratch *s, int64_t sample, int64_t d, int64_t h, int64_t w, int64_t channel,
                      int taken, int add, int half) {
    for (int64_t i = 0; i < PLANES * LINES; i++) {
        int64_t at_d = 2 * d - 1 + i / LINES, at_h = 2 * h - 1 + i % LINES;
        float *line = s->x + i * LINE;
        int inside = at_d >= 0 && at_d < l->depth && at_h >= 0 && at_h < l->height;
        int64_t from = ((sample * l->depth + at_d) * l->height + at_h) * l->width;
        for (int64_t j = 0; j < 2 * COLUMNS + 2; j++) {
            int64_t at_w = 2 * w - 1 + j, voxel = (from + at_w) * l->channels + channel;
            int here = inside && at_w >= 0 && at_w < l->width;
            float *to = line + j * taken;
            if (add) {
                float *x = (float *)l->x + voxel;
                for (int c = 0; here && c < taken; c++) x[c] += to[c];
            } else if (!here)
                for (int c = 0; c < taken; c++) to[c] = 0;
            else if (taken == CHUNK)
                for (int c = 0; c < CHUNK; c += WIDTH) *(lanes *)(to + c) = load(l->x, voxel + c, half);
            else
                for (int c = 0; c < taken; c++) to[c] = load_one(l->x, voxel + c, half);
        }
    }
}

/* Reads the gradients and offsets of a tile, by filter. Returns the number of voxels, which is less than VOXELS at the
 * ends of a plane. */
INLINE int read_gradient(const layer *l, scratch *s, int64_t plane, int64_t h, int64_t w, int taken, int half) {
    int64_t height = l->height / 2, width = l->width / 2, f = l->filters;
    int voxels = 0;
    int32_t of_choice[8];
    for (int k = 0; k < 8; k++) of_choice[k] = ((k >> 2) * LINES + (k >> 1 & 1)) * LINE + (k & 1) * taken;
    for (int r = 0; r < ROWS && h + r < height; r++)
        for (int c = 0; c < COLUMNS && w + c < width; c++, voxels++) {
            int64_t at = ((plane * height + h + r) * width + w + c) * f;
            int32_t base = 2 * r * LINE + 2 * c * taken;
            for (int64_t i = 0; i < f; i++) {
                s->gradient[i * VOXELS + voxels] = load_one(l->pooled, at + i, half);
                s->offset[i * VOXELS + voxels] = base + of_choice[l->chosen[at + i]];
            }
        }
    return voxels;
}

/* For every filter, and for `of` of the nine lines of taps from `first` on, each of `n` vectors: weight_tile sums, over
 * voxels, gradient times x under the filter; input_tile adds gradient times weights to x under the filter. */
#define AT(i) (((i) / 3 * LINES + (i) % 3) * LINE)
INLINE void weight_tile(scratch *s, int voxels, int64_t filters, float *sums, int n, int first, int of) {
    sums += first * n * WIDTH;
    for (int64_t f = 0; f < filters; f++, sums += 9 * n * WIDTH) {
        lanes sum[HELD];
        for (int i = 0; i < of * n; i++) sum[i] = *(lanes *)(sums + i * WIDTH);
        for (int v = 0; v < voxels; v++) {
            const float *x = s->x + s->offset[f * VOXELS + v];
            float gradient = s->gradient[f * VOXELS + v];
            for (int i = 0; i < of; i++)
                for (int j = 0; j < n; j++)
                    sum[i * n + j] += gradient * *(const lanes *)(x + AT(first + i) + j * WIDTH);
        }
        for (int i = 0; i < of * n; i++) *(lanes *)(sums + i * WIDTH) = sum[i];
    }
}

INLINE void input_tile(scratch *s, int voxels, int64_t filters, const float *weights, int n, int first, int of) {
    weights += first * n * WIDTH;
    for (int64_t f = 0; f < filters; f++, weights += 9 * n * WIDTH) {
        lanes weight[HELD];
        for (int i = 0; i < of * n; i++) weight[i] = *(const lanes *)(weights + i * WIDTH);
        for (int v = 0; v < voxels; v++) {
            float *x = s->x + s->offset[f * VOXELS + v];
            float gradient = s->gradient[f * VOXELS + v];
            for (int i = 0; i < of; i++)
                for (int j = 0; j < n; j++)
                    *(lanes *)(x + AT(first + i) + j * WIDTH) += gradient * weight[i * n + j];
        }
    }
}

#define AT_MOST(a, b) ((a) < (b) ? (a) : (b))
#define FOR_LINES(first, of) _Pragma("GCC unroll 9") for (int first = 0; first < 9; first += of)
#define FOR_TILES(l, h, w)                                \
    for (int64_t h = 0; h < (l)->height / 2; h += ROWS) \
        for (int64_t w = 0; w < (l)->width / 2; w += COLUMNS)

INLINE void gradients(const layer *l, scratch *s, int64_t begin, int64_t end, int64_t step, float *weights,
                      int of_input, int n, int half) {
    int taken = l->channels < CHUNK ? (int)l->channels : CHUNK, of = AT_MOST(9, HELD / n);
    int64_t depth = l->depth / 2, size = l->filters * 9 * n * WIDTH;
    memset(s->x, 0, sizeof s->x);
    for (int64_t channel = 0; channel < l->channels; channel += CHUNK)
        for (int64_t plane = begin; plane < end; plane += step)
            FOR_TILES(l, h, w) {
                int64_t sample = plane / depth, d = plane % depth;
                float *chunk = weights + channel / CHUNK * size;
                int voxels = read_gradient(l, s, plane, h, w, taken, half);
                if (of_input) {
                    memset(s->x, 0, sizeof s->x);
                    FOR_LINES(first, of) input_tile(s, voxels, l->filters, chunk, n, first, AT_MOST(of, 9 - first));
                    copy_tile(l, s, sample, d, h, w, channel, taken, 1, 0);
                } else {
                    copy_tile(l, s, sample, d, h, w, channel, taken, 0, half);
                    FOR_LINES(first, of) weight_tile(s, voxels, l->filters, chunk, n, first, AT_MOST(of, 9 - first));
                }
            }
}

#define ROWS_OF(of_input, n)                                                                    \
    if (l->half) gradients(l, s, begin, end, step, weights, of_input, n, 1);                     \
    else gradients(l, s, begin, end, step, weights, of_input, n, 0);

#define GRADIENT(name, of_input)                                                                              \
    void name(const layer *l, scratch *s, int64_t begin, int64_t end, int64_t step, float *weights) { \
        if (l->channels > 10) { ROWS_OF(of_input, 3 * CHUNK / WIDTH) }                                                        \
        else if (l->channels > 5) { ROWS_OF(of_input, 2 * CHUNK / WIDTH) }                                                    \
        else { ROWS_OF(of_input, 1 * CHUNK / WIDTH) }                                                                         \
    }

/* Adds the contributions of the planes begin, begin + step, ... to `weights`, this thread's sums. */
GRADIENT(mlhpc_weight_gradient, 0)
/* Adds the contributions of these planes to float32 x, here the gradient of the input. Neighbouring planes write to the
 * same voxels, so all even planes are computed before the odd ones. */
GRADIENT(mlhpc_input_gradient, 1)

int64_t mlhpc_scratch_bytes(void) { return sizeof(scratch); }
