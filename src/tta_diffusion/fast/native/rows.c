/* What a step does with rows of numbers on a CPU, one at a time: it reads and draws from its logits (see `top_logits` and
   `nucleus`), and rounds what products in 8 bits read (see `products`).

   A row of float32 stays in the cache while all is done with it, where one operation after the other over many rows
   waits for memory. Loops are plain, without branches, so that the compiler turns them into vectors. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 128 /* a loop that compilers make vectors of, and do not write out */
#define DEPTH 32 /* entries, LANES apart, that are first judged by their largest */
#define BLOCK (LANES * DEPTH)

typedef struct {
    float value;
    int64_t column;
} entry;

#define LOWEST -88.0f /* e^x counts as 0 */

/* e^x for LOWEST <= x <= 0, off by 2e-7 of it. */
static inline float exp_of(float x) {
    int32_t n = (int32_t)(x * 1.44269504f - 0.5f), exponent = (n + 127) * (1 << 23); /* of LOWEST: 0, a power of 0 */
    float whole = (float)n, power;
    float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f, p = 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    memcpy(&power, &exponent, sizeof power);
    return p * power;
}

static inline float of_bf16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* out = logits + bias in float32, minus infinity up to a whole number of blocks. */
static void widen(const void *logits, int is_bf16, const float *bias, int64_t size, int64_t padded, float *out) {
    const uint16_t *halves = logits;
    if (is_bf16)
        for (int64_t i = 0; i < size; i++) out[i] = of_bf16(halves[i]);
    else
        memcpy(out, logits, size * sizeof(float));
    if (bias)
        for (int64_t i = 0; i < size; i++) out[i] += bias[i];
    for (int64_t i = size; i < padded; i++) out[i] = -INFINITY;
}

/* maxima[b * LANES + i]: of the entries i, i + LANES, ... of block b. */
static void maxima_of(const float *restrict row, int64_t blocks, float *restrict maxima) {
    for (int64_t b = 0; b < blocks; b++) {
        const float *x = row + b * BLOCK;
        float best[LANES];
        for (int i = 0; i < LANES; i++) best[i] = x[i];
        for (int j = LANES; j < BLOCK; j += LANES)
            for (int i = 0; i < LANES; i++) best[i] = x[j + i] > best[i] ? x[j + i] : best[i];
        for (int i = 0; i < LANES; i++) maxima[b * LANES + i] = best[i];
    }
}

/* The k-th largest of n numbers, which are put in another order. */
static float kth_largest(float *x, int64_t n, int64_t k) {
    int64_t low = 0, high = n - 1, place = k - 1;
    while (low < high) {
        float pivot = x[(low + high) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (x[i] > pivot) i++;
            while (x[j] < pivot) j--;
            if (i <= j) {
                float t = x[i];
                x[i++] = x[j];
                x[j--] = t;
            }
        }
        if (place <= j) high = j;
        else if (place >= i) low = i;
        else break;
    }
    return x[place];
}

static int falling(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    return x->column < y->column ? -1 : 1;
}

/* Entries that are not below `least`, falling, of equal ones the first first; how many. */
static int64_t find(const float *row, int64_t size, const float *maxima, int64_t chunks, float least, entry *found) {
    int64_t count = 0;
    for (int64_t c = 0; c < chunks; c++) {
        if (!(maxima[c] >= least)) continue;
        int64_t start = c / LANES * BLOCK + c % LANES;
        for (int64_t i = start; i < start + BLOCK && i < size; i += LANES)
            if (row[i] >= least) found[count++] = (entry){row[i], i};
    }
    qsort(found, count, sizeof *found, falling);
    return count;
}

/* row = e^(row - top); their sum. */
static float exponentials(float *row, int64_t padded, float top) {
    float total[LANES] = {0};
    for (float *x = row; x < row + padded; x += LANES) {
        for (int i = 0; i < LANES; i++) x[i] = x[i] - top > LOWEST ? x[i] - top : LOWEST;
        for (int i = 0; i < LANES; i++) x[i] = exp_of(x[i]);
        for (int i = 0; i < LANES; i++) total[i] += x[i];
    }
    for (int i = 1; i < LANES; i++) total[0] += total[i];
    return total[0];
}

static void add(float *restrict out, const float *restrict row, int64_t size, float share) {
    for (int64_t i = 0; i < size; i++) out[i] += share * row[i];
}

/* The k largest of each row of logits (rows, size), which lie `stride` apart, with their columns; log sum exp of all
   others; and their probabilities, added up in the text of the row. In place the k largest become minus infinity.
   A row with fewer than k numbers has none in all it gives. Returns 0, or 1 if there is no memory. */
int read_rows(void *logits, int is_bf16, int64_t rows, int64_t stride, int64_t size, const float *bias,
              const int64_t *texts, int64_t k, float *values, int64_t *columns, float *rest, float *others) {
    int64_t blocks = (size + BLOCK - 1) / BLOCK, padded = blocks * BLOCK, chunks = blocks * LANES;
    float *row = malloc((padded + 2 * chunks) * sizeof(float)), *maxima = row + padded, *spare = maxima + chunks;
    entry *found = malloc(size * sizeof(entry));
    int missing = !row || !found;
    for (int64_t r = 0; r < rows && !missing; r++) {
        char *own = (char *)logits + r * stride * (is_bf16 ? 2 : 4);
        widen(own, is_bf16, bias, size, padded, row);
        maxima_of(row, blocks, maxima);
        memcpy(spare, maxima, chunks * sizeof(float));
        float least = chunks < k ? -INFINITY : kth_largest(spare, chunks, k);
        for (int64_t j = find(row, size, maxima, chunks, least, found); j < k; j++) found[j] = (entry){NAN, j};
        float top = found[0].value, known = 0;
        for (int64_t j = 0; j < k; j++) {
            values[r * k + j] = found[j].value;
            columns[r * k + j] = found[j].column;
            known += expf(found[j].value - top);
            row[found[j].column] = -INFINITY;
            if (is_bf16) ((uint16_t *)own)[found[j].column] = 0xFF80; /* minus infinity */
            else ((float *)own)[found[j].column] = -INFINITY;
        }
        float mass = exponentials(row, padded, top);
        rest[r] = top + logf(mass);
        add(others + texts[r] * size, row, size, 1 / (known + mass));
    }
    free(row);
    free(found);
    return missing;
}

/* `uniform_from_bits(mix(u))` of `tta_diffusion.randomness`. */
static double next(double u) {
    uint64_t x;
    memcpy(&x, &u, sizeof x);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    return ((double)(x >> 12) + 0.5) * 0x1p-52;
}

/* The sum of the weights above a bound. */
static float sum_above(const float *weights, int64_t size, float bound) {
    float total[LANES] = {0};
    int64_t whole = size / LANES * LANES;
    for (const float *x = weights; x < weights + whole; x += LANES)
        for (int i = 0; i < LANES; i++) total[i] += x[i] > bound ? x[i] : 0.0f;
    for (int i = 1; i < LANES; i++) total[0] += total[i];
    for (int64_t i = whole; i < size; i++) total[0] += weights[i] > bound ? weights[i] : 0.0f;
    return total[0];
}

/* The first place up to which more than `target` of the weights above a bound lies; rounding may leave the target just
   behind them: then the last of them. -1 if there are none. */
static int64_t inverse_cdf(const float *weights, int64_t size, float bound, double target) {
    double reached = 0;
    int64_t start = 0, behind = 0, last = -1;
    for (; start < size; start += BLOCK) {
        float inside = sum_above(weights + start, start + BLOCK < size ? BLOCK : size - start, bound);
        if (reached + inside > target) break;
        if (inside > 0) behind = start;
        reached += inside;
    }
    if (start >= size) start = behind;
    for (int64_t i = start; i < start + BLOCK && i < size; i++) {
        if (!(weights[i] > bound)) continue;
        last = i;
        reached += weights[i];
        if (reached > target) break;
    }
    return last;
}

/* A token for each of `rows` (count,) from its nucleus: k known ones with values (count, k) and ids (count, k), then
   the others, whose logits lie in the matrix; total (count,) is log sum exp of both. 0, or 1 if there is no memory. */
int draw_rows(const void *logits, int is_bf16, int64_t stride, int64_t size, const float *bias, const int64_t *rows,
              int64_t count, const float *values, const int64_t *ids, int64_t k, const float *total,
              const double *uniform, double top_p, int64_t *tokens) {
    int64_t padded = (k + size + BLOCK - 1) / BLOCK * BLOCK;
    float *row = malloc(padded * sizeof(float));
    for (int64_t r = 0; r < count && row; r++) {
        const char *own = (const char *)logits + rows[r] * stride * (is_bf16 ? 2 : 4);
        memcpy(row, values + r * k, k * sizeof(float));
        widen(own, is_bf16, bias, size, padded - k, row + k);
        exponentials(row, padded, total[r]);
        double u = uniform[r], mass = sum_above(row, k + size, 0);
        float bound = 0;
        for (;;) { /* ends: the bound rises, and the likeliest token is always inside */
            int64_t place = inverse_cdf(row, k + size, bound, u * mass);
            if (place < 0) break;
            tokens[r] = place < k ? ids[r * k + place] : place - k;
            bound = row[place];
            mass = top_p < 1 ? sum_above(row, k + size, bound) : 0;
            if (mass < top_p) break;
            u = next(u);
        }
    }
    int missing = !row;
    free(row);
    return missing;
}

#define TOGETHER 64 /* columns: products in 8 bits have whole groups of them */

/* Rows (count, width) times columns (width,), as codes from 1 to 255 around 128 and the scale of each row:
   x_rk columns_k = scales_r (codes_rk - 128) / 127, rounded. A scale is the largest |x_rk columns_k|, or `least`. */
void encode_rows(const float *rows, int64_t count, int64_t width, const float *columns, float least, uint8_t *codes,
                 float *scales) {
    for (int64_t r = 0; r < count; r++) {
        const float *x = rows + r * width;
        uint8_t *out = codes + r * width;
        float best[TOGETHER], scale = least;
        for (int i = 0; i < TOGETHER; i++) best[i] = 0;
        for (int64_t k = 0; k < width; k += TOGETHER)
            for (int i = 0; i < TOGETHER; i++) {
                float size = fabsf(x[k + i] * columns[k + i]);
                best[i] = size > best[i] ? size : best[i];
            }
        for (int i = 0; i < TOGETHER; i++) scale = best[i] > scale ? best[i] : scale;
        float by = 127 / scale;
        for (int64_t k = 0; k < width; k++) out[k] = (uint8_t)(int32_t)(x[k] * columns[k] * by + 128.5f);
        scales[r] = scale;
    }
}
