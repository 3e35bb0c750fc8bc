/* A CUDA driver without a GPU: the functions of libcuda.so.1 that Numba and cuda-bindings call.
 *
 * Memory is the host's. What is asked for is done at once, so there is nothing to wait for. A launch is handed to a
 * function that Python has set. Each allocation keeps, byte by byte, whether anybody has written there, and which
 * device it is on: a kernel of one device reaches the memory of that device only.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default"))) int
enum { OK = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, LAUNCH_FAILED = 719, NOT_SUPPORTED = 801 };
enum { DEVICES = 2, MOST = 1 << 16, CONTEXT = 0x1000 };  /* the context of device d is CONTEXT + d */
typedef uint64_t Pointer;

/* What Python sees and sets. */

typedef struct { Pointer start; size_t bytes; uint8_t *written; long device; } Allocation;
typedef struct { char name[4096]; } Kernel;
/* Returns 0, or 1 if the kernel failed. params: addresses of the values; packed: the values behind one another. */
typedef int (*Launch)(const char *name, unsigned blocks, unsigned threads, int device, void *stream, void **params,
                      void *packed);

static Launch on_launch;
static int capability = 90;
static Allocation allocations[MOST];
static int allocated;
static char message[4096] = "an error of the driver without a GPU";

API stub_set(Launch function, int new_capability) { on_launch = function; capability = new_capability; return OK; }
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  /* of the allocations: threads of the host come and go */
API stub_allocations(Allocation *copies) {
    pthread_mutex_lock(&lock);
    int count = allocated;
    memcpy(copies, allocations, count * sizeof *copies);
    pthread_mutex_unlock(&lock);
    return count;
}
API stub_message(const char *text) { snprintf(message, sizeof message, "%s", text); return OK; }

/* The devices: two of them, with the numbers of an H100. */

API cuInit(unsigned flags) { return OK; }
API cuDriverGetVersion(int *v) { *v = 13040; return OK; }
API cuDeviceGetCount(int *n) { *n = DEVICES; return OK; }
API cuDeviceGet(int *d, int k) { *d = k; return k < DEVICES ? OK : 101; }
API cuDeviceGetName(char *s, int n, int d) { snprintf(s, n, "no GPU, number %d", d); return OK; }
API cuDeviceTotalMem_v2(size_t *n, int d) { *n = 80ull << 30; return OK; }
API cuDeviceGetUuid_v2(char *uuid, int d) { memset(uuid, d + 1, 16); return OK; }
API cuDeviceGetUuid(char *uuid, int d) { return cuDeviceGetUuid_v2(uuid, d); }
API cuDeviceGetAttribute(int *v, int attribute, int d) {
    switch (attribute) {
    case 1: case 2: case 3: *v = 1024; break;                         /* threads of a block */
    case 4: *v = 64; break;
    case 5: *v = 2147483647; break;                                   /* blocks of a grid */
    case 6: case 7: *v = 65535; break;
    case 8: *v = 48 << 10; break;                                     /* shared memory of a block */
    case 10: *v = 32; break;                                          /* threads of a warp */
    case 12: case 82: *v = 65536; break;                              /* registers */
    case 13: *v = 1980000; break;                                     /* clock, kHz */
    case 16: *v = 132; break;                                         /* multiprocessors */
    case 38: *v = 50 << 20; break;                                    /* L2 */
    case 39: *v = 2048; break;                                        /* threads of a multiprocessor */
    case 41: *v = 1; break;                                           /* unified addresses */
    case 75: *v = capability / 10; break;
    case 76: *v = capability % 10; break;
    case 81: *v = 228 << 10; break;                                   /* shared memory of a multiprocessor */
    case 97: *v = 227 << 10; break;
    case 106: *v = 32; break;                                         /* blocks of a multiprocessor */
    default: *v = 0;
    }
    return OK;
}

/* Contexts: each thread of the host has a stack of them, the last one is current. */

static __thread long contexts[64];
static __thread int depth;
static long current(void) { return depth ? contexts[depth - 1] : 0; }

API cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)(long)(CONTEXT + d); return OK; }
API cuDevicePrimaryCtxRelease_v2(int d) { return OK; }
API cuDevicePrimaryCtxReset_v2(int d) { return OK; }
API cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) { *flags = 0; *active = 1; return OK; }
API cuCtxGetCurrent(void **c) { *c = (void *)current(); return OK; }
API cuCtxSetCurrent(void *c) { if (!depth) depth = 1; contexts[depth - 1] = (long)c; return OK; }
API cuCtxPushCurrent_v2(void *c) { contexts[depth++] = (long)c; return OK; }
API cuCtxPopCurrent_v2(void **c) { *c = (void *)current(); if (depth) depth--; return OK; }
API cuCtxGetDevice(int *d) { *d = (int)(current() - CONTEXT); return current() ? OK : INVALID_CONTEXT; }
API cuCtxGetId(void *c, unsigned long long *id) { *id = (long)c; return OK; }
API cuCtxSynchronize(void) { return OK; }

/* Memory. A fresh byte is 255, so that numbers that nobody wrote are NaN. */

static int place_of(Pointer p) {  /* while the lock is held */
    for (int k = 0; k < allocated; k++)
        if (allocations[k].start <= p && p < allocations[k].start + allocations[k].bytes) return k;
    return -1;
}
static int find(Pointer p, Allocation *found) {
    pthread_mutex_lock(&lock);
    int k = place_of(p);
    if (k >= 0) *found = allocations[k];
    pthread_mutex_unlock(&lock);
    return k >= 0;
}
static int mark(Pointer p, size_t n) {  /* written by the host */
    Allocation a;
    if (!find(p, &a) || p + n > a.start + a.bytes) return INVALID_VALUE;
    memset(a.written + (p - a.start), 1, n);
    return OK;
}
API cuMemAlloc_v2(Pointer *p, size_t n) {
    size_t room = (n + 255) / 256 * 256;
    if (!current()) return INVALID_CONTEXT;
    *p = (Pointer)aligned_alloc(256, room);
    memset((void *)*p, 255, room);
    pthread_mutex_lock(&lock);
    int full = allocated == MOST;
    if (!full) allocations[allocated++] = (Allocation){*p, n, calloc(room, 1), current() - CONTEXT};
    pthread_mutex_unlock(&lock);
    return full ? INVALID_VALUE : OK;
}
API cuMemFree_v2(Pointer p) {
    pthread_mutex_lock(&lock);
    int k = place_of(p);
    if (k >= 0) {
        free((void *)p);
        free(allocations[k].written);
        allocations[k] = allocations[--allocated];
    }
    pthread_mutex_unlock(&lock);
    return k < 0 ? INVALID_VALUE : OK;
}
API cuMemGetInfo_v2(size_t *unused, size_t *all) { *unused = *all = 80ull << 30; return OK; }
API cuMemGetAddressRange_v2(Pointer *start, size_t *n, Pointer p) {
    Allocation a;
    if (!find(p, &a)) return INVALID_VALUE;
    if (start) *start = a.start;
    if (n) *n = a.bytes;
    return OK;
}
API cuPointerGetAttribute(void *v, int attribute, Pointer p) {
    Allocation a;
    if (!find(p, &a)) return INVALID_VALUE;
    switch (attribute) {
    case 1: *(void **)v = (void *)(CONTEXT + a.device); return OK;
    case 2: *(int *)v = 2; return OK;                                 /* on a device */
    case 3: *(Pointer *)v = p; return OK;
    case 9: *(int *)v = (int)a.device; return OK;
    default: return INVALID_VALUE;
    }
}
API cuPointerGetAttributes(unsigned n, int *attributes, void **data, Pointer p) { return NOT_SUPPORTED; }
API cuMemcpyHtoD_v2(Pointer to, const void *from, size_t n) {
    if (mark(to, n)) return INVALID_VALUE;
    memcpy((void *)to, from, n);
    return OK;
}
API cuMemcpyHtoDAsync_v2(Pointer to, const void *from, size_t n, void *stream) { return cuMemcpyHtoD_v2(to, from, n); }
API cuMemcpyDtoH_v2(void *to, Pointer from, size_t n) {
    Allocation a;
    if (!find(from, &a) || from + n > a.start + a.bytes) return INVALID_VALUE;
    memcpy(to, (void *)from, n);
    return OK;
}
API cuMemcpyDtoHAsync_v2(void *to, Pointer from, size_t n, void *stream) { return cuMemcpyDtoH_v2(to, from, n); }
API cuMemcpyDtoD_v2(Pointer to, Pointer from, size_t n) { return cuMemcpyHtoD_v2(to, (void *)from, n); }
API cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t n, void *stream) { return cuMemcpyDtoD_v2(to, from, n); }
API cuMemsetD8_v2(Pointer to, unsigned char value, size_t n) {
    if (mark(to, n)) return INVALID_VALUE;
    memset((void *)to, value, n);
    return OK;
}
API cuMemsetD8Async(Pointer to, unsigned char value, size_t n, void *s) { return cuMemsetD8_v2(to, value, n); }

/* Streams belong to a device. 0, 1 and 2 are names of the default streams of the current one. */

API cuStreamCreate(void **s, unsigned flags) {
    if (!current()) return INVALID_CONTEXT;
    *(long **)s = malloc(sizeof(long));
    **(long **)s = current();
    return OK;
}
API cuStreamCreateWithPriority(void **s, unsigned flags, int priority) { return cuStreamCreate(s, flags); }
API cuStreamDestroy_v2(void *s) { free(s); return OK; }
API cuStreamSynchronize(void *s) { return OK; }
API cuStreamQuery(void *s) { return OK; }
API cuStreamGetCtx(void *s, void **c) { *c = (void *)((long)s > 2 ? *(long *)s : current()); return OK; }
API cuStreamGetCtx_v2(void *s, void **c, void **green) { *green = NULL; return cuStreamGetCtx(s, c); }
API cuStreamGetFlags(void *s, unsigned *flags) { *flags = 1; return OK; }
API cuStreamGetPriority(void *s, int *priority) { *priority = 0; return OK; }
API cuStreamWaitEvent(void *s, void *e, unsigned flags) { return OK; }
API cuEventCreate(void **e, unsigned flags) { *e = malloc(8); return OK; }
API cuEventDestroy_v2(void *e) { free(e); return OK; }
API cuEventRecord(void *e, void *s) { return OK; }
API cuEventQuery(void *e) { return OK; }
API cuEventSynchronize(void *e) { return OK; }
API cuEventElapsedTime_v2(float *ms, void *a, void *b) { *ms = 1; return OK; }

/* Code: only its name is kept. Python knows its PTX. */

static int named(void **kernel, const char *name) {
    Kernel *k = malloc(sizeof *k);
    snprintf(k->name, sizeof k->name, "%s", name);
    *kernel = k;
    return OK;
}
static int some(void **p) { *p = malloc(8); return OK; }

API cuLibraryLoadData(void **l, void *code, void *o, void *v, unsigned n, void *p, void *w, unsigned m) { return some(l); }
API cuLibraryUnload(void *l) { return OK; }
API cuLibraryGetKernel(void **k, void *l, const char *name) { return named(k, name); }
API cuLibraryGetGlobal(Pointer *p, size_t *n, void *l, const char *name) { *n = 8; return some((void **)p); }
API cuLibraryGetModule(void **m, void *l) { *m = l; return OK; }
API cuKernelGetFunction(void **f, void *k) { *f = k; return OK; }
API cuKernelGetAttribute(int *v, int attribute, void *k, int d) { *v = attribute ? 0 : 1024; return OK; }
API cuKernelSetAttribute(int attribute, int v, void *k, int d) { return OK; }
API cuKernelSetCacheConfig(void *k, int c, int d) { return OK; }
API cuKernelGetParamInfo(void *k, size_t i, size_t *at, size_t *n) { return INVALID_VALUE; }
API cuModuleLoadData(void **m, const void *image) { return some(m); }
API cuModuleLoadDataEx(void **m, const void *image, unsigned n, void *o, void **v) { return some(m); }
API cuModuleUnload(void *m) { return OK; }
API cuModuleGetFunction(void **f, void *m, const char *name) { return named(f, name); }
API cuModuleGetGlobal_v2(Pointer *p, size_t *n, void *m, const char *name) { *n = 8; return some((void **)p); }
API cuFuncGetAttribute(int *v, int attribute, void *f) { *v = 0; return OK; }
API cuFuncSetAttribute(void *f, int attribute, int v) { return OK; }
API cuFuncSetCacheConfig(void *f, int c) { return OK; }
API cuGetErrorName(int e, const char **s) { *s = message; return OK; }
API cuGetErrorString(int e, const char **s) { *s = message; return OK; }

static int launch(Kernel *k, unsigned blocks, unsigned threads, void *stream, void **params, void **extra) {
    void *packed = NULL;
    for (; extra && *extra; extra += 2)
        if ((long)*extra == 1) packed = extra[1];                     /* CU_LAUNCH_PARAM_BUFFER_POINTER */
    if (!current()) return INVALID_CONTEXT;
    if ((long)stream > 2 && *(long *)stream != current()) return INVALID_HANDLE;
    if (!on_launch) return OK;
    return on_launch(k->name, blocks, threads, (int)(current() - CONTEXT), stream, params, packed) ? LAUNCH_FAILED : OK;
}
API cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **params, void **extra) {
    return gy * gz * by * bz == 1 ? launch(f, gx, bx, stream, params, extra) : NOT_SUPPORTED;
}
typedef struct { unsigned gx, gy, gz, bx, by, bz, shared; void *stream; void *attributes; unsigned count; } Config;
API cuLaunchKernelEx(Config *c, void *f, void **params, void **extra) {
    return cuLaunchKernel(f, c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->shared, c->stream, params, extra);
}

/* Where programs ask for functions by name. What is not here answers that it is not supported. */

static int missing(void) { return NOT_SUPPORTED; }
API cuGetProcAddress_v2(const char *name, void **f, int version, uint64_t flags, int *status) {
    char full[256];
    void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    const char *ends[] = {"_v2", ""};
    *f = missing;
    for (int k = 0; k < 2; k++) {
        snprintf(full, sizeof full, "%s%s", name, ends[k]);
        if (dlsym(self, full)) { *f = dlsym(self, full); break; }
    }
    if (status) *status = 0;
    return OK;
}
API cuGetProcAddress(const char *name, void **f, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, f, version, flags, NULL);
}
