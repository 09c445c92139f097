/* `many=N`: different convolutions by turns, `steps=` times, as a program of ever new shapes; up to 1000. Every output goes into a
 * hash, printed for each step. */
typedef struct {
    Problem problem;
    Descriptor plan, pack;
} One;

static Status many(void) {
    int64_t count = option("many", 0), steps = option("steps", 4), room = 0, bytes = 0, ignored = 0;
    One *all = calloc(count, sizeof *all);
    Worker w = worker();
    /* One set of tensors, as large as the largest needs. */
    Problem largest = problem_of(10, 10, 10);
    Address addresses[3], workspace = 0;
    for (int i = 0; i < 3; i++) addresses[i] = upload(&largest, i);
    for (int64_t i = 0; i < count; i++) {
        One *one = &all[i];
        one->problem = problem_of(1 + i % 10, 1 + i / 10 % 10, 1 + i / 100 % 10);
        Descriptor g = graph(&one->problem, w.handle), config = configuration(g);
        one->plan = create(5);
        MUST(set(one->plan, 400, T_HANDLE, 1, &w.handle));
        MUST(set(one->plan, 401, T_DESC, 1, &config));
        MUST(DNN(cudnnBackendFinalize)(one->plan));
        MUST(DNN(cudnnBackendGetAttribute)(one->plan, 402, T_INT, 1, &ignored, &bytes));
        room = bytes > room ? bytes : room;
        MUST(DNN(cudnnBackendDestroyDescriptor)(g));
        MUST(DNN(cudnnBackendDestroyDescriptor)(config));
    }
    if (room) MUST(CUDA(cuMemAlloc_v2, &workspace, room));
    for (int64_t step = 0; step < steps; step++) {
        uint64_t hash = 14695981039346656037ull;
        for (int64_t i = 0; i < count; i++) {
            One *one = &all[i];
            if (!one->pack) one->pack = pack(addresses, workspace);
            Status status = DNN(cudnnBackendExecute)(w.handle, one->plan, one->pack);
            if (status) return status;
            wait_for(w.stream);
            int which = one->problem.operation == FORWARD ? 2 : one->problem.operation == DATA ? 0 : 1;
            int64_t length = one->problem.length[which] * bytes_of(one->problem.type);
            unsigned char *host = malloc(length);
            MUST(CUDA(cuMemcpyDtoH_v2, host, addresses[which], length));
            for (int64_t at = 0; at < length; at++) hash = (hash ^ host[at]) * 1099511628211ull;
            free(host);
        }
        printf("hash %016llx\n", (unsigned long long)hash);
    }
    return 0;
}
