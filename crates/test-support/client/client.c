/* A program on cuDNN that knows nothing of tightfit: one convolution through the backend interface or the legacy one.
 *
 *   client key=value ..      see `option` calls in main
 *
 * Built linked (-DLINKED: cuDNN by DT_NEEDED, as PyTorch) or not (dlopen and dlsym, as JAX). Prints one line a fact. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int Status;
typedef void *Handle, *Descriptor;
typedef uint64_t Address;

/* cuDNN, as its headers have it. */
Status cudnnCreate(Handle *), cudnnDestroy(Handle), cudnnSetStream(Handle, void *), cudnnGetStream(Handle, void **);
size_t cudnnGetVersion(void);
const char *cudnnGetErrorString(Status);
Status cudnnBackendCreateDescriptor(int, Descriptor *), cudnnBackendDestroyDescriptor(Descriptor);
Status cudnnBackendSetAttribute(Descriptor, int, int, int64_t, const void *);
Status cudnnBackendGetAttribute(Descriptor, int, int, int64_t, int64_t *, void *);
Status cudnnBackendFinalize(Descriptor), cudnnBackendExecute(Handle, Descriptor, Descriptor);
Status cudnnGetExecutionPlanWorkspaceSize(Handle, Descriptor, Descriptor, size_t *);
Status cudnnBackendPopulateCudaGraph(Handle, Descriptor, Descriptor, void *);
Status cudnnBackendUpdateCudaGraph(Handle, Descriptor, Descriptor, void *);

#ifdef LINKED
#define DNN(name) name
#else
static void *dnn;
#define DNN(name) ((__typeof__(&name))required(dnn, #name))
#endif

static void *required(void *library, const char *name) {
    void *address = dlsym(library, name);
    if (!address) {
        printf("missing %s\n", name);
        exit(9);
    }
    return address;
}

/* The driver. */
static void *cuda;
#define CUDA(name, ...) ((int (*)())required(cuda, #name))(__VA_ARGS__)
#define MUST(call)                                                                                                    \
    do {                                                                                                              \
        int must_ = (call);                                                                                           \
        if (must_) {                                                                                                  \
            printf("failed %s: %d\n", #call, must_);                                                                  \
            exit(8);                                                                                                  \
        }                                                                                                             \
    } while (0)

static int argc_;
static char **argv_;

static const char *text(const char *key, const char *otherwise) {
    size_t length = strlen(key);
    for (int i = 1; i < argc_; i++)
        if (!strncmp(argv_[i], key, length) && argv_[i][length] == '=') return argv_[i] + length + 1;
    return otherwise;
}

static int64_t option(const char *key, int64_t otherwise) {
    const char *value = text(key, NULL);
    return value ? strtoll(value, NULL, 10) : otherwise;
}

/* One convolution. */
enum { FORWARD, DATA, FILTER };
typedef struct {
    int operation, type, arithmetic, spatial, nhwc;
    int64_t n, c, k, groups, size, filter, pad, stride, alignment, offset;
    float alpha, beta;
    int64_t dims[3][5], strides[3][5], length[3]; /* x w y */
} Problem;

static int64_t bytes_of(int type) { return type == 0 ? 4 : 2; }

static void shape(Problem *p, int which, int64_t outer, int64_t inner, int64_t size) {
    int rank = 2 + p->spatial;
    int64_t *d = p->dims[which], *s = p->strides[which], step = 1;
    d[0] = outer, d[1] = inner;
    for (int i = 2; i < rank; i++) d[i] = size;
    if (p->nhwc) {
        s[1] = 1, step = inner;
        for (int i = rank - 1; i >= 2; i--) s[i] = step, step *= d[i];
        s[0] = step;
    } else {
        for (int i = rank - 1; i >= 0; i--) s[i] = step, step *= d[i];
        step = s[0];
    }
    p->length[which] = d[0] * s[0];
}

static Problem problem_of(int64_t n, int64_t c, int64_t k) {
    Problem p = {0};
    const char *operation = text("op", "forward"), *types = text("types", "f32");
    p.operation = !strcmp(operation, "forward") ? FORWARD : !strcmp(operation, "data") ? DATA : FILTER;
    p.type = !strncmp(types, "f32", 3) || !strcmp(types, "tf32") ? 0 : !strncmp(types, "f16", 3) ? 2 : 9;
    p.arithmetic = !strcmp(types, "f16") ? 2 : 0;
    p.spatial = (int)option("spatial", 2);
    p.nhwc = (int)option("nhwc", 0);
    p.n = n, p.c = c, p.k = k, p.groups = option("groups", 1);
    p.size = option("size", 9), p.filter = option("filter", 3), p.pad = option("pad", 1), p.stride = option("stride", 1);
    p.alignment = option("alignment", 16), p.offset = option("offset", 0);
    p.alpha = (float)atof(text("alpha", "1")), p.beta = (float)atof(text("beta", "0"));
    int64_t out = (p.size + 2 * p.pad - p.filter) / p.stride + 1;
    shape(&p, 0, p.n, p.c, p.size);
    shape(&p, 1, p.k, p.c / p.groups, p.filter);
    shape(&p, 2, p.n, p.k, out);
    if (option("gap", 0)) p.strides[0][0] += 16, p.length[0] += 16 * p.n;
    return p;
}

static Problem problem_of_options(int64_t more) { return problem_of(option("n", 7) + more, option("c", 8), option("k", 8)); }

/* Small whole numbers, so that sums are exact in any order. */
static float value_at(int which, int64_t i) { return (float)((i * 7 + i / 5 + which * 3) % 5) - 2; }

static uint16_t half_of(int type, float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (type == 9) return (uint16_t)(bits >> 16);
    _Float16 half = (_Float16)value;
    uint16_t word;
    memcpy(&word, &half, 2);
    return word;
}

static float of_half(int type, uint16_t word) {
    if (type == 9) {
        uint32_t bits = (uint32_t)word << 16;
        float value;
        memcpy(&value, &bits, 4);
        return value;
    }
    _Float16 half;
    memcpy(&half, &word, 2);
    return (float)half;
}

/* What a tensor holds at first, in its type. */
static char *content(const Problem *p, int which) {
    char *host = malloc(p->length[which] * bytes_of(p->type));
    for (int64_t i = 0; i < p->length[which]; i++) {
        float value = value_at(which, i);
        if (p->type == 0) memcpy(host + 4 * i, &value, 4);
        else {
            uint16_t word = half_of(p->type, value);
            memcpy(host + 2 * i, &word, 2);
        }
    }
    return host;
}

static Address upload(const Problem *p, int which) {
    int64_t bytes = p->length[which] * bytes_of(p->type);
    Address address;
    MUST(CUDA(cuMemAlloc_v2, &address, bytes + p->offset));
    address += p->offset;
    char *host = content(p, which);
    MUST(CUDA(cuMemcpyHtoD_v2, address, host, bytes));
    /* Not for the device, where other streams may be capturing. */
    MUST(CUDA(cuStreamSynchronize, (void *)0));
    free(host);
    return address;
}

/* Attribute types. */
enum { T_HANDLE = 0, T_DATA = 1, T_BOOL = 2, T_INT = 3, T_FLOAT = 4, T_POINTER = 6, T_MODE = 7, T_HEUR = 8, T_POINTWISE = 14,
       T_DESC = 15, T_CHAR = 24 };

static Status set(Descriptor d, int name, int type, int64_t count, const void *values) {
    return DNN(cudnnBackendSetAttribute)(d, name, type, count, values);
}

static Descriptor create(int kind) {
    Descriptor d = NULL;
    MUST(DNN(cudnnBackendCreateDescriptor)(kind, &d));
    return d;
}

static const uint8_t YES = 1;

/* A tensor; `flag` is an attribute to set, as 907 for one that is never in memory, or 0. */
static Descriptor tensor(const Problem *p, int which, int64_t id, int flag) {
    Descriptor d = create(17);
    int rank = 2 + p->spatial;
    MUST(set(d, 901, T_DATA, 1, &p->type));
    MUST(set(d, 902, T_INT, rank, p->dims[which]));
    MUST(set(d, 903, T_INT, rank, p->strides[which]));
    MUST(set(d, 906, T_INT, 1, &id));
    MUST(set(d, 900, T_INT, 1, &p->alignment));
    if (flag) MUST(set(d, flag, T_BOOL, 1, &YES));
    MUST(DNN(cudnnBackendFinalize)(d));
    return d;
}

static const int64_t IDS[4] = {120, 119, 121, 123}; /* x w y, as PyTorch has them, and a number by value */
enum { BETWEEN = 122 };

/* `fused=1`: the result is doubled, `fused=2`: multiplied by a number that the graph is given by value. */
static Descriptor after(const Problem *p, Descriptor result) {
    int data = 0, mode = option("fused", 0) == 2 ? 1 : 21;
    int64_t ones[5] = {1, 1, 1, 1, 1}, alignment = 4, id = IDS[3];
    float two = 2;
    Descriptor y = tensor(p, 2, IDS[2], 0), by_value = create(17), pointwise = create(0), operation = create(13);
    MUST(set(pointwise, 0, T_POINTWISE, 1, &mode));
    MUST(set(pointwise, 1, T_DATA, 1, &data));
    MUST(DNN(cudnnBackendFinalize)(pointwise));
    MUST(set(operation, 750, T_DESC, 1, &pointwise));
    MUST(set(operation, 751, T_DESC, 1, &result));
    MUST(set(operation, 753, T_DESC, 1, &y));
    if (mode == 1) {
        MUST(set(by_value, 901, T_DATA, 1, &data));
        MUST(set(by_value, 902, T_INT, 2 + p->spatial, ones));
        MUST(set(by_value, 903, T_INT, 2 + p->spatial, ones));
        MUST(set(by_value, 906, T_INT, 1, &id));
        MUST(set(by_value, 900, T_INT, 1, &alignment));
        MUST(set(by_value, 908, T_BOOL, 1, &YES));
        MUST(DNN(cudnnBackendFinalize)(by_value));
        MUST(set(operation, 752, T_DESC, 1, &by_value));
    } else MUST(set(operation, 754, T_FLOAT, 1, &two));
    MUST(DNN(cudnnBackendFinalize)(operation));
    Descriptor gone[] = {y, by_value, pointwise};
    for (int i = 0; i < 3; i++) MUST(DNN(cudnnBackendDestroyDescriptor)(gone[i]));
    return operation;
}

static Descriptor graph(const Problem *p, Handle handle) {
    int is_fused = option("fused", 0) != 0, shapes = (int)option("shapes", 0);
    Descriptor x = tensor(p, 0, IDS[0], 0), w = tensor(p, 1, IDS[1], 0), window = create(1);
    Descriptor y = is_fused ? tensor(p, 2, BETWEEN, 907) : tensor(p, 2, IDS[2], 0);
    int64_t spatial = p->spatial, pads[3], strides[3], ones[3];
    int mode = (int)option("mode", 1);
    for (int i = 0; i < 3; i++) pads[i] = p->pad, strides[i] = p->stride, ones[i] = 1;
    MUST(set(window, 106, T_INT, 1, &spatial));
    MUST(set(window, 100, T_DATA, 1, &p->arithmetic));
    MUST(set(window, 101, T_MODE, 1, &mode));
    MUST(set(window, 105, T_INT, spatial, pads));
    MUST(set(window, 104, T_INT, spatial, pads));
    MUST(set(window, 103, T_INT, spatial, strides));
    MUST(set(window, 102, T_INT, spatial, ones));
    MUST(DNN(cudnnBackendFinalize)(window));
    static const int kinds[3] = {10, 12, 11};
    static const int names[3][6] = {{704, 703, 705, 702, 700, 701}, {710, 709, 711, 708, 706, 707}, {716, 715, 717, 714, 712, 713}};
    const int *name = names[p->operation];
    Descriptor operation = create(kinds[p->operation]);
    MUST(set(operation, name[0], T_DESC, 1, &x));
    MUST(set(operation, name[1], T_DESC, 1, &w));
    MUST(set(operation, name[2], T_DESC, 1, &y));
    MUST(set(operation, name[3], T_DESC, 1, &window));
    MUST(set(operation, name[4], T_FLOAT, 1, &p->alpha));
    MUST(set(operation, name[5], T_FLOAT, 1, &p->beta));
    MUST(DNN(cudnnBackendFinalize)(operation));
    Descriptor graph = create(15);
    if (handle) MUST(set(graph, 800, T_HANDLE, 1, &handle));
    Descriptor operations[2] = {operation, is_fused ? after(p, y) : NULL};
    MUST(set(graph, 801, T_DESC, 1 + is_fused, operations));
    /* `shapes=803`: dynamic, `shapes=805`: overridden. */
    if (shapes) MUST(set(graph, shapes, T_BOOL, 1, &YES));
    MUST(DNN(cudnnBackendFinalize)(graph));
    if (is_fused) MUST(DNN(cudnnBackendDestroyDescriptor)(operations[1]));
    /* Frontends destroy them long before the plan runs. */
    Descriptor gone[] = {x, w, y, window, operation};
    for (int i = 0; i < 5; i++) MUST(DNN(cudnnBackendDestroyDescriptor)(gone[i]));
    return graph;
}

/* An engine in place of the option's; none below 0. */
static int64_t next_engine = -1;

/* The configuration of an engine by its number, or the heuristics' n-th. */
static Descriptor configuration(Descriptor graph) {
    int64_t index = next_engine < 0 ? option("engine", -1) : next_engine, rank = option("result", 0);
    if (index >= 0) {
        Descriptor engine = create(2), config = create(3);
        MUST(set(engine, 1300, T_DESC, 1, &graph));
        MUST(set(engine, 1301, T_INT, 1, &index));
        MUST(DNN(cudnnBackendFinalize)(engine));
        MUST(set(config, 300, T_DESC, 1, &engine));
        MUST(DNN(cudnnBackendFinalize)(config));
        MUST(DNN(cudnnBackendDestroyDescriptor)(engine));
        return config;
    }
    Descriptor heuristics = create(4), configs[16];
    int mode = 0;
    int64_t count = 0;
    MUST(set(heuristics, 201, T_DESC, 1, &graph));
    MUST(set(heuristics, 200, T_HEUR, 1, &mode));
    MUST(DNN(cudnnBackendFinalize)(heuristics));
    for (int i = 0; i < 16; i++) configs[i] = create(3);
    MUST(DNN(cudnnBackendGetAttribute)(heuristics, 202, T_DESC, 16, &count, configs));
    MUST(DNN(cudnnBackendDestroyDescriptor)(heuristics));
    for (int i = 0; i < 16; i++)
        if (i != rank) MUST(DNN(cudnnBackendDestroyDescriptor)(configs[i]));
    return configs[rank];
}

static Descriptor pack(const Address *addresses, Address workspace) {
    Descriptor pack = create(16);
    static const float three = 3;
    Address all[4] = {addresses[0], addresses[1], addresses[2], (Address)&three};
    int64_t count = option("fused", 0) == 2 ? 4 : 3;
    MUST(set(pack, 1000, T_INT, count, IDS));
    MUST(set(pack, 1001, T_POINTER, count, all));
    MUST(set(pack, 1003, T_POINTER, 1, &workspace));
    /* `more=1`: places for what is between operations, of which there is nothing here. */
    if (option("more", 0)) MUST(set(pack, 1002, T_POINTER, 1, all));
    MUST(DNN(cudnnBackendFinalize)(pack));
    return pack;
}

/* Calls so far of what has no place under capture: taking and giving back memory, waiting, loading. */
static uint64_t unsafe_calls(void) {
    static const char *const names[] = {"cuMemAlloc_v2",    "cuMemFree_v2",       "cuMemHostAlloc",     "cuMemFreeHost",
                                        "cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize", "cuModuleLoadData"};
    uint64_t (*calls)(const char *) = (uint64_t(*)(const char *))required(cuda, "tightfitMockCudaCalls"), sum = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) sum += calls(names[i]);
    return sum;
}

/* One device's stream and handle. */
typedef struct {
    Handle handle;
    void *stream;
} Worker;

static Worker worker(void) {
    Worker w = {0};
    MUST(CUDA(cuStreamCreate, &w.stream, 1));
    MUST(DNN(cudnnCreate)(&w.handle));
    MUST(DNN(cudnnSetStream)(w.handle, w.stream));
    return w;
}

static void write_output(const Problem *p, const Address *addresses, const char *path) {
    int which = p->operation == FORWARD ? 2 : p->operation == DATA ? 0 : 1;
    int64_t count = p->length[which], size = bytes_of(p->type);
    char *host = malloc(count * size);
    MUST(CUDA(cuMemcpyDtoH_v2, host, addresses[which], count * size));
    FILE *file = fopen(path, "wb");
    for (int64_t i = 0; i < count; i++) {
        float value;
        if (p->type == 0) memcpy(&value, host + 4 * i, 4);
        else {
            uint16_t word;
            memcpy(&word, host + 2 * i, 2);
            value = of_half(p->type, word);
        }
        fwrite(&value, 4, 1, file);
    }
    fclose(file);
    free(host);
}

static pthread_mutex_t print = PTHREAD_MUTEX_INITIALIZER;

#include "watch.h"

static void begin(void);

/* Another thread's capture, in the mode that the runtime has by default: unsafe calls of any thread break it. */
static void *capture_beside(void *stream) {
    begin();
    MUST(CUDA(cuStreamBeginCapture_v2, stream, 0));
    return NULL;
}

static void *captured_beside(void) {
    pthread_t thread;
    void *stream;
    MUST(CUDA(cuStreamCreate, &stream, 1));
    pthread_create(&thread, NULL, capture_beside, stream);
    pthread_join(thread, NULL);
    return stream;
}

/* The plan of a plan's text, which knows nothing of a graph. */
static Descriptor restored(Descriptor plan, Handle handle) {
    char json[4096];
    int64_t length = 0;
    MUST(DNN(cudnnBackendGetAttribute)(plan, 405, T_CHAR, sizeof json, &length, json));
    MUST(DNN(cudnnBackendDestroyDescriptor)(plan));
    Descriptor again = create(5);
    MUST(set(again, 400, T_HANDLE, 1, &handle));
    MUST(set(again, 405, T_CHAR, length, json));
    MUST(DNN(cudnnBackendFinalize)(again));
    return again;
}

/* The plan's own graph of kernels, filled and launched. */
static void populate(Worker w, Descriptor plan, Descriptor packed) {
    void *native = NULL, *executable = NULL;
    MUST(CUDA(cuGraphCreate, &native, 0));
    Status status = DNN(cudnnBackendPopulateCudaGraph)(w.handle, plan, packed, native);
    printf("populate %d\n", status);
    if (status) return;
    MUST(CUDA(cuGraphInstantiateWithFlags, &executable, native, (uint64_t)0));
    MUST(CUDA(cuGraphLaunch, executable, w.stream));
}

/* Everything a frontend does for one convolution; gives the status of the execution. */
static Status convolve(const Problem *p, const char *out) {
    static int rounds;
    /* `once=1`: only the first round is captured. */
    int64_t capture = option("once", 0) && rounds++ ? 0 : option("capture", 0);
    Worker w = worker();
    Address addresses[3];
    for (int i = 0; i < 3; i++) addresses[i] = upload(p, i);
    int captures = capture != 0;
    void *recorded = NULL, *executable = NULL;
    uint64_t before = unsafe_calls();
    if (capture == 2) MUST(CUDA(cuStreamBeginCapture_v2, w.stream, 2));
    void *beside = option("beside", 0) == 1 ? captured_beside() : NULL;
    Descriptor g = graph(p, w.handle), config = configuration(g);
    int64_t of_config = -1, of_plan = -1, count = 0;
    if (option("ask", 1)) MUST(DNN(cudnnBackendGetAttribute)(config, 303, T_INT, 1, &count, &of_config));
    Descriptor plan = create(5);
    MUST(set(plan, 400, T_HANDLE, 1, &w.handle));
    MUST(set(plan, 401, T_DESC, 1, &config));
    Status status = DNN(cudnnBackendFinalize)(plan);
    if (beside) printf("beside %d\n", CUDA(cuStreamEndCapture, beside, &recorded)), recorded = NULL;
    if (status) {
        printf("plan %d\n", status);
        return status;
    }
    if (option("restored", 0)) plan = restored(plan, w.handle);
    MUST(DNN(cudnnBackendGetAttribute)(plan, 402, T_INT, 1, &count, &of_plan));
    Address workspace = 0;
    if (of_plan > 0) MUST(CUDA(cuMemAlloc_v2, &workspace, of_plan));
    if (of_plan > 0) before++;
    Descriptor packed = pack(addresses, workspace);
    if (!option("ask", 1)) of_config = of_plan;
    size_t third = 0;
    MUST(DNN(cudnnGetExecutionPlanWorkspaceSize)(w.handle, plan, packed, &third));
    pthread_mutex_lock(&print);
    printf("workspace %lld %lld %lld\n", (long long)of_config, (long long)of_plan, (long long)third);
    pthread_mutex_unlock(&print);
    if (option("populate", 0)) populate(w, plan, packed);
    if (option("update", 0)) printf("update %d\n", DNN(cudnnBackendUpdateCudaGraph)(w.handle, plan, packed, NULL));
    Descriptor gone[] = {g, config};
    for (int i = 0; i < 2; i++) MUST(DNN(cudnnBackendDestroyDescriptor)(gone[i]));
    if (capture == 1) before = unsafe_calls();
    if (capture == 1) MUST(CUDA(cuStreamBeginCapture_v2, w.stream, 2));
    /* `beside=2`: during the executions. */
    if (option("beside", 0) == 2) beside = captured_beside();
    Watch watch = watch_of(p, addresses);
    for (int64_t i = 0; i < option("times", 1); i++) {
        if (i == option("signal", -1)) kill(getpid(), SIGUSR1);
        if (i == option("killed", -1)) kill(getpid(), SIGKILL);
        before_execution(&watch);
        status = DNN(cudnnBackendExecute)(w.handle, plan, packed);
        if (status) break;
        after_execution(&watch, w.stream);
    }
    end_watch(&watch);
    if (option("beside", 0) == 2) printf("beside %d\n", CUDA(cuStreamEndCapture, beside, &recorded)), recorded = NULL;
    /* `leave=1`: the program ends without waiting for anything. */
    if (option("leave", 0)) return status;
    if (captures) {
        printf("unsafe %llu\n", (unsigned long long)(unsafe_calls() - before));
        MUST(CUDA(cuStreamEndCapture, w.stream, &recorded));
        MUST(CUDA(cuGraphInstantiateWithFlags, &executable, recorded, (uint64_t)0));
        /* Plan and handle go before the graph runs. */
        MUST(DNN(cudnnBackendDestroyDescriptor)(plan));
        if (option("destroy", 1)) MUST(DNN(cudnnDestroy)(w.handle));
        MUST(CUDA(cuGraphLaunch, executable, w.stream));
    }
    int synchronized = CUDA(cuStreamSynchronize, w.stream);
    if (synchronized) printf("stream %d\n", synchronized);
    if (!status && out && *out) write_output(p, addresses, out);
    MUST(DNN(cudnnBackendDestroyDescriptor)(packed));
    if (!captures) MUST(DNN(cudnnBackendDestroyDescriptor)(plan));
    if (!captures && option("destroy", 1)) MUST(DNN(cudnnDestroy)(w.handle));
    return status;
}

static void begin(void) {
    void *context;
    MUST(CUDA(cuInit, 0));
    MUST(CUDA(cuDevicePrimaryCtxRetain, &context, (int)option("device", 0)));
    MUST(CUDA(cuCtxSetCurrent, context));
}

static void *in_thread(void *argument) {
    begin();
    Problem p = problem_of_options((int64_t)(intptr_t)argument % 3);
    int64_t rounds = option("rounds", 3);
    Status status = 0;
    for (int64_t i = 0; i < rounds && !status; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s.%d", text("out", "/dev/null"), (int)(intptr_t)argument);
        status = convolve(&p, text("out", NULL) ? path : NULL);
    }
    return (void *)(intptr_t)status;
}

#include "bench.h"
#include "ranks.h"
#include "network.h"
#include "limits.h"
#include "legacy.h"
#include "many.h"
#include "real.h"

/* However the program ends: how often the stand-ins were called, so that a test knows whether a failure was met. */
static void print_calls(void) {
    void *driver = dlopen(getenv("TIGHTFIT_MOCK_CUDA"), RTLD_LAZY | RTLD_NOLOAD);
    void *library = dlopen(text("counted", NULL), RTLD_LAZY | RTLD_NOLOAD);
    uint64_t (*of_driver)(const char *) = driver ? (uint64_t(*)(const char *))dlsym(driver, "tightfitMockCudaCalls") : NULL;
    uint64_t (*of_library)(const char *) = library ? (uint64_t(*)(const char *))dlsym(library, "tightfitMockCudnnCalls") : NULL;
    printf("calls %llu %llu\n", (unsigned long long)(of_library ? of_library("*") : 0),
           (unsigned long long)(of_driver ? of_driver("*") : 0));
}

int main(int argc, char **argv) {
    argc_ = argc, argv_ = argv;
    setvbuf(stdout, NULL, _IOLBF, 0);
    /* `counted=`: the stand-in for cuDNN. */
    if (text("counted", NULL)) atexit(print_calls);
    if (option("idle", 0)) return 0;
#ifndef LINKED
    dnn = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!dnn) {
        printf("dlopen: %s\n", dlerror());
        return 9;
    }
#endif
    int64_t begun = nanoseconds();
    printf("version %zu\n", DNN(cudnnGetVersion)());
    if (option("bench", 0)) printf("first-call %lld\n", (long long)(nanoseconds() - begun));
    printf("error %s\n", DNN(cudnnGetErrorString)(3000));
    void (*set_layer)(const char *) = (void (*)(const char *))dlsym(RTLD_DEFAULT, "tightfitSetLayer");
    if (set_layer && text("layer", NULL)) set_layer(text("layer", NULL));
    /* `limits=`: set before anything is planned. */
    if (text("limits", NULL)) set_limits(text("limits", NULL));
    if (option("real", 0)) {
        Problem p = problem_of_options(0);
        printf("status %d\n", real(&p));
        return 0;
    }
    cuda = dlopen(getenv("TIGHTFIT_CUDA"), RTLD_NOW | RTLD_GLOBAL);
    if (!cuda) {
        printf("no driver: %s\n", dlerror());
        return 9;
    }
    begin();
    /* `hoarding=1`: the device's own pool keeps what is given back to it, as some frameworks tell it to. */
    if (option("hoarding", 0)) {
        void *pool;
        uint64_t all = UINT64_MAX;
        MUST(CUDA(cuDeviceGetDefaultMemPool, &pool, 0));
        MUST(CUDA(cuMemPoolSetAttribute, pool, 4, &all));
    }
    /* `torch=`: a library that the program has loaded. */
    if (text("torch", NULL)) required(dlopen(text("torch", NULL), RTLD_NOW | RTLD_GLOBAL), "_ZN2at13globalContextEv");
    int64_t threads = option("threads", 0);
    Status status = 0;
    if (option("forked", 0)) status = forked(text("out", NULL));
    else if (option("net", 0)) status = network(text("out", NULL));
    else if (text("script", NULL)) status = script(text("out", NULL));
    else if (option("many", 0)) status = many();
    else if (threads) {
        pthread_t ids[64], toggling;
        if (option("toggled", 0)) pthread_create(&toggling, NULL, toggle, NULL);
        for (int64_t i = 0; i < threads; i++) pthread_create(&ids[i], NULL, in_thread, (void *)(intptr_t)i);
        for (int64_t i = 0; i < threads; i++) {
            void *result;
            pthread_join(ids[i], &result);
            if (result) status = (Status)(intptr_t)result;
        }
        is_done = 1;
        if (option("toggled", 0)) pthread_join(toggling, NULL);
    } else {
        Problem p = problem_of_options(0);
        int64_t rounds = option("rounds", 1);
        for (int64_t i = 0; i < rounds && !status; i++)
            status = text("legacy", NULL) ? legacy(&p, text("out", NULL))
                     : option("bench", 0) ? bench(&p)
                                          : convolve(&p, text("out", NULL));
    }
    if (option("counts", 0)) print_counts();
    printf("status %d\n", status);
    if (option("abort", 0)) abort();
    if (option("fork", 0)) {
        fflush(stdout);
        pid_t child = fork();
        if (!child) exit(0);
        waitpid(child, NULL, 0);
    }
    return 0;
}
