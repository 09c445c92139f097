/* What calls cost beside the work: `bench=` how many of each; prints the least time of ten rounds, in nanoseconds. */
#include <time.h>

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

#define LEAST(name, calls, body)                                                                                       \
    do {                                                                                                              \
        double least = 1e18;                                                                                          \
        for (int round = 0; round < 10; round++) {                                                                    \
            int64_t begun = nanoseconds();                                                                            \
            for (int64_t i = 0; i < (calls); i++) body;                                                               \
            double each = (double)(nanoseconds() - begun) / (double)(calls);                                          \
            if (each < least) least = each;                                                                           \
        }                                                                                                             \
        printf(name " %.1f\n", least);                                                                                \
    } while (0)

static int by_value(const void *a, const void *b) {
    double one = *(const double *)a, other = *(const double *)b;
    return (one > other) - (one < other);
}

/* The median of calls of which each comes when other work has filled the caches, as in a program. */
#define AFTER_OTHER_WORK(name, calls, body)                                                                            \
    do {                                                                                                              \
        static volatile char other_work[16 << 20];                                                                    \
        double times[calls];                                                                                          \
        for (int call = 0; call < (calls); call++) {                                                                  \
            for (size_t at = 0; at < sizeof other_work; at += 64) other_work[at]++;                                    \
            int64_t begun = nanoseconds();                                                                            \
            body;                                                                                                     \
            times[call] = (double)(nanoseconds() - begun);                                                            \
        }                                                                                                             \
        qsort(times, calls, sizeof *times, by_value);                                                                 \
        printf(name " %.1f\n", times[(calls) / 2]);                                                                   \
    } while (0)

/* Tensors at address 0, which the stand-in for cuDNN refuses at once: what is timed is the call, not a convolution. */
static Status bench(const Problem *p) {
    static const Address nowhere[3];
    int64_t calls = option("bench", 1000), of_plan = 0, count = 0, begun = nanoseconds();
    Worker w = worker();
    Descriptor g = graph(p, w.handle), config = configuration(g), plan = create(5);
    MUST(set(plan, 400, T_HANDLE, 1, &w.handle));
    MUST(set(plan, 401, T_DESC, 1, &config));
    MUST(DNN(cudnnBackendFinalize)(plan));
    MUST(DNN(cudnnBackendGetAttribute)(plan, 402, T_INT, 1, &count, &of_plan));
    printf("first-plan %lld\n", (long long)(nanoseconds() - begun));
    Descriptor packed = pack(nowhere, 0);
    LEAST("execute", calls, DNN(cudnnBackendExecute)(w.handle, plan, packed));
    LEAST("pack", calls / 10 + 1, MUST(DNN(cudnnBackendDestroyDescriptor)(pack(nowhere, 0))));
    AFTER_OTHER_WORK("step", 400, {
        Descriptor again = pack(nowhere, 0);
        DNN(cudnnBackendExecute)(w.handle, plan, again);
        MUST(DNN(cudnnBackendDestroyDescriptor)(again));
    });
    LEAST("plan", calls / 100 + 1, {
        Descriptor again = create(5);
        MUST(set(again, 400, T_HANDLE, 1, &w.handle));
        MUST(set(again, 401, T_DESC, 1, &config));
        MUST(DNN(cudnnBackendFinalize)(again));
        MUST(DNN(cudnnBackendDestroyDescriptor)(again));
    });
    LEAST("graph", calls / 100 + 1, MUST(DNN(cudnnBackendDestroyDescriptor)(graph(p, w.handle))));
    return 0;
}
