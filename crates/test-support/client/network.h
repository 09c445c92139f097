/* Several convolutions, step after step: `net=` how many, `steps=`, `handles=` streams that take turns, `late=` how many of
 * them come only with the third step, `capture=` the step that is captured, launched, and launched again in the end. With
 * `sync=1`, every other step ends with waiting. See ranks.h for the rest. */
typedef struct {
    Problem problem;
    Descriptor plan, pack;
    Address addresses[3];
    Worker worker;
} Layer;

static void plan_layer(Layer *layer, int64_t place, Worker worker) {
    static const int operations[3] = {FORWARD, DATA, FILTER};
    layer->problem = problem_of_options(place / 3 * 2);
    layer->problem.operation = operations[place % 3];
    layer->worker = worker;
    for (int i = 0; i < 3; i++) layer->addresses[i] = upload(&layer->problem, i);
    Descriptor g = graph(&layer->problem, worker.handle), config = configuration(g);
    layer->plan = create(5);
    MUST(set(layer->plan, 400, T_HANDLE, 1, &worker.handle));
    MUST(set(layer->plan, 401, T_DESC, 1, &config));
    MUST(DNN(cudnnBackendFinalize)(layer->plan));
    int64_t bytes = -1, count = 0;
    MUST(DNN(cudnnBackendGetAttribute)(layer->plan, 402, T_INT, 1, &count, &bytes));
    printf("workspace %lld\n", (long long)bytes);
    Address workspace = 0;
    if (bytes > 0) MUST(CUDA(cuMemAlloc_v2, &workspace, bytes));
    layer->pack = pack(layer->addresses, workspace);
    MUST(DNN(cudnnBackendDestroyDescriptor)(g));
    MUST(DNN(cudnnBackendDestroyDescriptor)(config));
}

static Status network(const char *out) {
    int64_t layers = option("net", 1), steps = option("steps", 4), handles = option("handles", 1), late = option("late", 0);
    int64_t captured = option("capture", -1);
    void *recorded = NULL, *executable = NULL;
    Worker workers[4];
    Layer *all = calloc(layers, sizeof *all);
    for (int64_t i = 0; i < handles; i++) workers[i] = worker();
    for (int64_t step = 0; step < steps; step++) {
        int64_t present = step < 2 ? layers - late : layers;
        int waits = begin_step(step, workers[0].stream);
        uint64_t before = unsafe_calls(), taken = taken_in_order();
        if (step == captured) MUST(CUDA(cuStreamBeginCapture_v2, workers[0].stream, 2));
        for (int64_t i = 0; i < present; i++) {
            if (!all[i].plan) plan_layer(&all[i], i, workers[i % handles]);
            /* Once more on another stream, where there are several. */
            for (int64_t again = 0; again < (handles > 1 && step % 2 ? 2 : 1); again++) {
                Worker w = workers[(i + again) % handles];
                if (again) MUST(CUDA(cuStreamSynchronize, all[i].worker.stream));
                Status status = DNN(cudnnBackendExecute)(w.handle, all[i].plan, all[i].pack);
                if (status) return status;
                if (again) MUST(CUDA(cuStreamSynchronize, w.stream));
            }
        }
        meet(step, workers[0].stream, taken);
        if (step == captured) {
            printf("unsafe %llu\n", (unsigned long long)(unsafe_calls() - before));
            MUST(CUDA(cuStreamEndCapture, workers[0].stream, &recorded));
            MUST(CUDA(cuGraphInstantiateWithFlags, &executable, recorded, (uint64_t)0));
            MUST(CUDA(cuGraphLaunch, executable, workers[0].stream));
        } else
            for (int64_t i = 0; i < handles && waits; i++) wait_for(workers[i].stream);
    }
    if (executable) MUST(CUDA(cuGraphLaunch, executable, workers[0].stream));
    for (int64_t i = 0; i < handles; i++) {
        int synchronized = CUDA(cuStreamSynchronize, workers[i].stream);
        if (synchronized) printf("stream %d\n", synchronized);
    }
    for (int64_t i = 0; i < layers && out; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s.%lld", out, (long long)i);
        write_output(&all[i].problem, all[i].addresses, path);
    }
    return 0;
}

/* Two convolutions in one captured graph, on two streams. `join=0` leaves the second stream for others to join, which is an
 * error of the capture unless somebody does. */
static Status forked(const char *out) {
    Worker workers[2] = {worker(), worker()};
    Layer layers[2] = {0};
    void *fork = NULL, *join = NULL, *recorded = NULL, *executable = NULL;
    MUST(CUDA(cuEventCreate, &fork, 2));
    MUST(CUDA(cuEventCreate, &join, 2));
    for (int i = 0; i < 2; i++) plan_layer(&layers[i], i, workers[i]);
    MUST(CUDA(cuStreamBeginCapture_v2, workers[0].stream, 2));
    MUST(CUDA(cuEventRecord, fork, workers[0].stream));
    MUST(CUDA(cuStreamWaitEvent, workers[1].stream, fork, 0));
    for (int i = 1; i >= 0; i--) {
        Status status = DNN(cudnnBackendExecute)(workers[i].handle, layers[i].plan, layers[i].pack);
        if (status) return status;
    }
    if (option("join", 1)) {
        MUST(CUDA(cuEventRecord, join, workers[1].stream));
        MUST(CUDA(cuStreamWaitEvent, workers[0].stream, join, 0));
    }
    int ended = CUDA(cuStreamEndCapture, workers[0].stream, &recorded);
    printf("captured %d\n", ended);
    if (ended) return 0;
    MUST(CUDA(cuGraphInstantiateWithFlags, &executable, recorded, (uint64_t)0));
    MUST(CUDA(cuGraphLaunch, executable, workers[0].stream));
    MUST(CUDA(cuStreamSynchronize, workers[0].stream));
    for (int i = 0; i < 2 && out; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s.%d", out, i);
        write_output(&layers[i].problem, layers[i].addresses, path);
    }
    return 0;
}
