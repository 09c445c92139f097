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
