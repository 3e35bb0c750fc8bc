/* The backward pass of lnlib.cpu in C, float32: what a compiler's loops can do with the same algorithm.

   Sums over a row in vectors, of 2 KB at most, then in double; parameter gradients of 16 rows in float, then double.
   `together` is the number of rows whose gradients are written together: 1, row by row, or 4, with gamma, dgamma and
   dbeta in registers meanwhile. Rows out of range, overflow and arrays that overlap are not looked for. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* As many floats as a register holds: wider vectors are taken apart, and what is taken apart goes through memory. */
#ifdef __AVX512F__
#define LANES 16
#elif defined __AVX__
#define LANES 8
#else
#define LANES 4
#endif
#define CHUNK 512
#define BLOCK 16
#define INLINE static inline __attribute__((always_inline))

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE vector load(const float *p) { return *(const vector *)p; }
INLINE double sum(vector a) { float s = 0; for (int k = 0; k < LANES; k++) s += a[k]; return s; }

/* Means of g and of g * xhat over a row, xhat = (x - mean) * rstd - shift; 1 if the mean of xhat is not about 0. */
INLINE int means(const float *dy, const float *x, const float *gamma, float mean, float shift, float rstd, long D,
                 float *g_mean, float *gx_mean)
{
    float first = dy[0] * gamma[0];
    double w_sum = 0, wx_sum = 0, x_sum = 0;
    for (long start = 0; start < D; start += CHUNK) {
        long stop = start + CHUNK < D ? start + CHUNK : D, j = start;
        vector a[2] = {{0}}, b[2] = {{0}}, c[2] = {{0}};
        for (; j + 2 * LANES <= stop; j += 2 * LANES)
            for (int k = 0; k < 2; k++) {
                long i = j + k * LANES;
                vector w = load(dy + i) * load(gamma + i), h = load(x + i) - mean;
                w -= first;
                h = h * rstd - shift;
                a[k] += w;
                b[k] += w * h;
                c[k] += h;
            }
        w_sum += sum(a[0] + a[1]);
        wx_sum += sum(b[0] + b[1]);
        x_sum += sum(c[0] + c[1]);
        for (; j < stop; j++) {
            float w = dy[j] * gamma[j], h = (x[j] - mean) * rstd - shift;
            w -= first;
            w_sum += w;
            wx_sum += w * h;
            x_sum += h;
        }
    }
    *g_mean = first + w_sum / D;
    *gx_mean = wx_sum / D - w_sum / D * (x_sum / D);
    return fabs(x_sum) > 0x1p-16 * D;
}

INLINE void write(int rows, const float *restrict dy, const float *restrict x, const float *restrict gamma,
                  const float *restrict mean, const float *restrict shift, const float *restrict rstd,
                  const float *g_mean, const float *gx_mean, long D, long start, long stop,
                  float *restrict dx, float *restrict dgamma, float *restrict dbeta)
{
#pragma GCC ivdep
    for (long j = start; j < stop; j++) {
        float a = dgamma[j], b = dbeta[j];
        for (int k = 0; k < rows; k++) {
            float u = dy[k * D + j], h = (x[k * D + j] - mean[k]) * rstd[k] - shift[k];
            dx[k * D + j] = rstd[k] * (u * gamma[j] - g_mean[k] - h * gx_mean[k]);
            a += u * h;
            b += u;
        }
        dgamma[j] = a;
        dbeta[j] = b;
    }
}

/* statistics: (3, rows), mean, residual and rstd of each. scratch: 3 D floats, and sums: 2 D doubles. Returns how many
   rows' means are not those recorded. */
INLINE long backward(int together, long rows, long D, const float *dy, const float *x, const float *statistics,
                     const float *gamma_of_caller, float *dx, float *dgamma_out, float *dbeta_out, float *scratch,
                     double *sums)
{
    const float *mean = statistics, *residual = statistics + rows, *rstd = statistics + 2 * rows;
    float *gamma = scratch, *dgamma = gamma + D, *dbeta = dgamma + D, g[BLOCK], gx[BLOCK], shift[BLOCK];
    long changed = 0;
    memcpy(gamma, gamma_of_caller, 4 * D);
    memset(dgamma, 0, 8 * D);
    memset(sums, 0, 16 * D);
    for (long block = 0; block < rows; block += BLOCK) {
        long end = block + BLOCK < rows ? block + BLOCK : rows;
        for (long i = block; i < end;) {
            int n = i + together <= end ? together : 1;
            for (int k = 0; k < n; k++) {
                shift[k] = residual[i + k] * rstd[i + k];
                changed += means(dy + (i + k) * D, x + (i + k) * D, gamma, mean[i + k], shift[k], rstd[i + k], D,
                                 g + k, gx + k);
            }
            long head = -(uintptr_t)(dx + i * D) % 64 / 4;
            head = head < D ? head : D;
            if (n == 4) {
                write(4, dy + i * D, x + i * D, gamma, mean + i, shift, rstd + i, g, gx, D, 0, head,
                      dx + i * D, dgamma, dbeta);
                write(4, dy + i * D, x + i * D, gamma, mean + i, shift, rstd + i, g, gx, D, head, D,
                      dx + i * D, dgamma, dbeta);
            } else {
                write(1, dy + i * D, x + i * D, gamma, mean + i, shift, rstd + i, g, gx, D, 0, head,
                      dx + i * D, dgamma, dbeta);
                write(1, dy + i * D, x + i * D, gamma, mean + i, shift, rstd + i, g, gx, D, head, D,
                      dx + i * D, dgamma, dbeta);
            }
            i += n;
        }
        for (long j = 0; j < D; j++) {
            sums[j] += dgamma[j];
            sums[D + j] += dbeta[j];
            dgamma[j] = dbeta[j] = 0;
        }
    }
    for (long j = 0; j < D; j++) {
        dgamma_out[j] = sums[j];
        dbeta_out[j] = sums[D + j];
    }
    return changed;
}

#define ARGUMENTS long rows, long D, const float *dy, const float *x, const float *statistics, const float *gamma, \
    float *dx, float *dgamma, float *dbeta, float *scratch, double *sums
#define PASSED rows, D, dy, x, statistics, gamma, dx, dgamma, dbeta, scratch, sums

long row_by_row(ARGUMENTS) { return backward(1, PASSED); }
long four_rows(ARGUMENTS) { return backward(4, PASSED); }
