/* The convolution through the legacy interface: `legacy=` a name of how its algorithm is chosen, `algorithm=` a number. */
typedef struct {
    int algorithm, status;
    float milliseconds;
    size_t bytes;
    int determinism, math, reserved[3];
} Performance;

Status cudnnCreateTensorDescriptor(Descriptor *), cudnnDestroyTensorDescriptor(Descriptor);
Status cudnnSetTensorNdDescriptor(Descriptor, int, int, const int *, const int *);
Status cudnnCreateFilterDescriptor(Descriptor *), cudnnDestroyFilterDescriptor(Descriptor);
Status cudnnSetFilterNdDescriptor(Descriptor, int, int, int, const int *);
Status cudnnCreateConvolutionDescriptor(Descriptor *), cudnnDestroyConvolutionDescriptor(Descriptor);
Status cudnnSetConvolutionNdDescriptor(Descriptor, int, const int *, const int *, const int *, int, int);
Status cudnnSetConvolutionGroupCount(Descriptor, int), cudnnSetConvolutionMathType(Descriptor, int);
Status cudnnGetTensorNdDescriptor(Descriptor, int, int *, int *, int *, int *);
Status cudnnGetFilterNdDescriptor(Descriptor, int, int *, int *, int *, int *);
Status cudnnGetConvolutionNdDescriptor(Descriptor, int, int *, int *, int *, int *, int *, int *);
Status cudnnGetConvolutionGroupCount(Descriptor, int *), cudnnGetConvolutionMathType(Descriptor, int *);
#define OF_OPERATION(name)                                                                                            \
    Status cudnnConvolution##name(Handle, const void *, Descriptor, Address, Descriptor, Address, Descriptor, int,     \
                                  Address, size_t, const void *, Descriptor, Address);                                \
    Status cudnnGetConvolution##name##WorkspaceSize(Handle, Descriptor, Descriptor, Descriptor, Descriptor, int,       \
                                                    size_t *);                                                        \
    Status cudnnGetConvolution##name##AlgorithmMaxCount(Handle, int *);                                               \
    Status cudnnGetConvolution##name##Algorithm_v7(Handle, Descriptor, Descriptor, Descriptor, Descriptor, int, int *, \
                                                   Performance *);                                                    \
    Status cudnnFindConvolution##name##Algorithm(Handle, Descriptor, Descriptor, Descriptor, Descriptor, int, int *,   \
                                                 Performance *);                                                      \
    Status cudnnFindConvolution##name##AlgorithmEx(Handle, Descriptor, Address, Descriptor, Address, Descriptor,       \
                                                   Descriptor, Address, int, int *, Performance *, Address, size_t);
OF_OPERATION(Forward)
OF_OPERATION(BackwardData)
OF_OPERATION(BackwardFilter)
#define BY_OPERATION(operation, before, after)                                                                        \
    ((operation) == FORWARD ? DNN(before##Forward##after)                                                             \
     : (operation) == DATA  ? DNN(before##BackwardData##after)                                                        \
                            : DNN(before##BackwardFilter##after))

Status cudnnCreateActivationDescriptor(Descriptor *), cudnnDestroyActivationDescriptor(Descriptor);
Status cudnnSetActivationDescriptor(Descriptor, int, int, double);
Status cudnnConvolutionBiasActivationForward(Handle, const void *, Descriptor, Address, Descriptor, Address, Descriptor, int,
                                             Address, size_t, const void *, Descriptor, Address, Descriptor, Address,
                                             Descriptor, Descriptor, Address);

static void narrow(const int64_t *from, int *to) {
    for (int i = 0; i < 5; i++) to[i] = (int)from[i];
}

/* What calls cost, as in bench.h; and what reading the descriptors back costs, which the library does at every call. */
static void bench_legacy(const Problem *p, Handle handle, Descriptor *d, const int *o, Descriptor window, int algorithm) {
    int64_t calls = option("bench", 0);
    int type, count, format, mode, arithmetic, groups, math, one[8], two[8], three[8];
    LEAST("legacy", calls,
          BY_OPERATION(p->operation, cudnnConvolution, )(handle, &p->alpha, d[o[0]], 0, d[o[1]], 0, window, algorithm, 0, 0, &p->beta,
                                                         d[o[2]], 0));
    LEAST("legacy-read", calls, {
        DNN(cudnnGetTensorNdDescriptor)(d[0], 8, &type, &count, one, two);
        DNN(cudnnGetFilterNdDescriptor)(d[1], 8, &type, &format, &count, one);
        DNN(cudnnGetTensorNdDescriptor)(d[2], 8, &type, &count, one, two);
        DNN(cudnnGetConvolutionNdDescriptor)(window, 6, &count, one, two, three, &mode, &arithmetic);
        DNN(cudnnGetConvolutionGroupCount)(window, &groups);
        DNN(cudnnGetConvolutionMathType)(window, &math);
    });
}

/* `activation=`: the convolution with bias and activation in one call; `z=1` adds a tensor of the output's shape, `z=2` what
 * the output holds. */
typedef struct {
    Descriptor activation, bias_descriptor;
    Address bias, z;
    float alpha2;
} Fused;

static Fused fused_of_options(const Problem *p, const Address *addresses) {
    Fused f = {0};
    int dims[5] = {1, (int)p->k, 1, 1, 1}, strides[5] = {(int)p->k, 1, 1, 1, 1};
    MUST(DNN(cudnnCreateActivationDescriptor)(&f.activation));
    MUST(DNN(cudnnSetActivationDescriptor)(f.activation, (int)option("activation", 1), 0, 0.0));
    MUST(DNN(cudnnCreateTensorDescriptor)(&f.bias_descriptor));
    MUST(DNN(cudnnSetTensorNdDescriptor)(f.bias_descriptor, p->type, 2 + p->spatial, dims, strides));
    Problem bias = *p;
    bias.length[0] = p->k;
    f.bias = upload(&bias, 0);
    f.z = option("z", 0) == 1 ? upload(p, 2) : addresses[2];
    f.alpha2 = option("z", 0) ? 2 : 0;
    return f;
}

static Status legacy(const Problem *p, const char *out) {
    Worker worker_ = worker();
    Handle handle = worker_.handle;
    Address addresses[3];
    for (int i = 0; i < 3; i++) addresses[i] = upload(p, i);
    int rank = 2 + p->spatial, dims[5], strides[5], pads[3], steps[3], ones[3] = {1, 1, 1};
    for (int i = 0; i < 3; i++) pads[i] = (int)p->pad, steps[i] = (int)p->stride;
    Descriptor d[3], window;
    for (int i = 0; i < 3; i++) {
        narrow(p->dims[i], dims), narrow(p->strides[i], strides);
        if (i == 1) {
            MUST(DNN(cudnnCreateFilterDescriptor)(&d[i]));
            MUST(DNN(cudnnSetFilterNdDescriptor)(d[i], p->type, p->nhwc, rank, dims));
        } else {
            MUST(DNN(cudnnCreateTensorDescriptor)(&d[i]));
            MUST(DNN(cudnnSetTensorNdDescriptor)(d[i], p->type, rank, dims, strides));
        }
    }
    Descriptor larger[2] = {d[0], d[2]};
    /* `larger=`: the workspace is asked for with so many samples more. */
    for (int i = 0; i < 2 && option("larger", 0); i++) {
        narrow(p->dims[2 * i], dims), narrow(p->strides[2 * i], strides);
        dims[0] += (int)option("larger", 0);
        MUST(DNN(cudnnCreateTensorDescriptor)(&larger[i]));
        MUST(DNN(cudnnSetTensorNdDescriptor)(larger[i], p->type, rank, dims, strides));
    }
    MUST(DNN(cudnnCreateConvolutionDescriptor)(&window));
    MUST(DNN(cudnnSetConvolutionNdDescriptor)(window, p->spatial, pads, steps, ones, (int)option("mode", 1), p->arithmetic));
    MUST(DNN(cudnnSetConvolutionGroupCount)(window, (int)p->groups));
    MUST(DNN(cudnnSetConvolutionMathType)(window, (int)option("math", 3)));
    static const int order[3][3] = {{0, 1, 2}, {1, 2, 0}, {0, 2, 1}}; /* first, second, output of x w y */
    const int *o = order[p->operation];
    int algorithm = (int)option("algorithm", 0), count = 0, most = 0;
    size_t bytes = 0;
    const char *how = text("legacy", "");
    Performance list[8];
    MUST(BY_OPERATION(p->operation, cudnnGetConvolution, AlgorithmMaxCount)(handle, &most));
    if (!strcmp(how, "get"))
        MUST(BY_OPERATION(p->operation, cudnnGetConvolution, Algorithm_v7)(handle, d[o[0]], d[o[1]], window, d[o[2]], most, &count, list));
    else if (!strcmp(how, "find"))
        MUST(BY_OPERATION(p->operation, cudnnFindConvolution, Algorithm)(handle, d[o[0]], d[o[1]], window, d[o[2]], most, &count, list));
    else if (!strcmp(how, "ex")) {
        size_t room = option("sized", 0) ? 0 : (size_t)option("room", 1 << 20), each;
        Address scratch = 0;
        /* `sized=1`: as much as the largest of all algorithms says that it needs. */
        for (int i = 0; i < most && option("sized", 0); i++)
            if (!BY_OPERATION(p->operation, cudnnGetConvolution, WorkspaceSize)(handle, d[o[0]], d[o[1]], window, d[o[2]], i, &each))
                room = each > room ? each : room;
        if (room) MUST(CUDA(cuMemAlloc_v2, &scratch, room));
        MUST(BY_OPERATION(p->operation, cudnnFindConvolution, AlgorithmEx)(handle, d[o[0]], addresses[o[0]], d[o[1]], addresses[o[1]],
                                                                         window, d[o[2]], addresses[o[2]], most, &count, list, scratch, room));
    }
    for (int i = 0; i < count; i++) {
        printf("listed %d %d %zu %.6f\n", list[i].algorithm, list[i].status, list[i].bytes, list[i].milliseconds);
        if (list[i].algorithm == algorithm || option("algorithm", -1) < 0) {
            algorithm = list[i].algorithm;
            bytes = list[i].bytes;
            MUST(DNN(cudnnSetConvolutionMathType)(window, list[i].math));
            if (option("algorithm", -1) < 0) break;
        }
    }
    if (option("bench", 0)) {
        bench_legacy(p, handle, d, o, window, algorithm);
        return 0;
    }
    size_t asked = 0;
    Descriptor of_ask[3] = {larger[0], d[1], larger[1]};
    MUST(BY_OPERATION(p->operation, cudnnGetConvolution, WorkspaceSize)(handle, of_ask[o[0]], of_ask[o[1]], window, of_ask[o[2]],
                                                                      algorithm, &asked));
    if (!count) bytes = asked;
    printf("workspace %zu %zu\n", bytes, asked);
    /* `between=`: limits set between the query and the calls. */
    if (text("between", NULL)) set_limits(text("between", NULL));
    bytes += (size_t)option("less", 0) ? -(size_t)option("less", 0) : 0;
    Address workspace = 0;
    if (bytes) MUST(CUDA(cuMemAlloc_v2, &workspace, bytes));
    Status status = 0;
    Fused f = {0};
    if (text("activation", NULL)) f = fused_of_options(p, addresses);
    /* `handles=2`: on two streams in turns, each with a workspace and an output of its own. */
    Worker workers[2] = {worker_};
    Address workspaces[2] = {workspace}, outputs[2] = {addresses[o[2]]};
    int handles = (int)option("handles", 1);
    if (handles > 1) {
        workers[1] = worker(), outputs[1] = upload(p, o[2]);
        if (bytes) MUST(CUDA(cuMemAlloc_v2, &workspaces[1], bytes));
    }
    void *recorded = NULL, *executable = NULL;
    if (option("capture", 0)) MUST(CUDA(cuStreamBeginCapture_v2, worker_.stream, 2));
    Watch watch = watch_of(p, addresses);
    for (int64_t i = 0; i < option("times", 1) && !status; i++) {
        before_execution(&watch);
        Handle h = workers[i % handles].handle;
        Address in = workspaces[i % handles], to = outputs[i % handles];
        status = f.activation ? DNN(cudnnConvolutionBiasActivationForward)(h, &p->alpha, d[0], addresses[0], d[1], addresses[1], window,
                                                                         algorithm, in, bytes, &f.alpha2, d[2],
                                                                         option("z", 0) == 1 ? f.z : to, f.bias_descriptor, f.bias,
                                                                         f.activation, d[2], to)
                              : BY_OPERATION(p->operation, cudnnConvolution, )(h, &p->alpha, d[o[0]], addresses[o[0]], d[o[1]],
                                                                             addresses[o[1]], window, algorithm, in, bytes,
                                                                             &p->beta, d[o[2]], to);
        if (!status) after_execution(&watch, workers[i % handles].stream);
    }
    end_watch(&watch);
    if (option("capture", 0)) {
        MUST(CUDA(cuStreamEndCapture, worker_.stream, &recorded));
        MUST(CUDA(cuGraphInstantiateWithFlags, &executable, recorded, (uint64_t)0));
        MUST(CUDA(cuGraphLaunch, executable, worker_.stream));
    }
    for (int i = 0; i < handles; i++) {
        int synchronized = CUDA(cuStreamSynchronize, workers[i].stream);
        if (synchronized) printf("stream %d\n", synchronized);
    }
    if (!status && out) write_output(p, addresses, out);
    for (int i = 0; i < 3; i++)
        MUST(i == 1 ? DNN(cudnnDestroyFilterDescriptor)(d[i]) : DNN(cudnnDestroyTensorDescriptor)(d[i]));
    if (f.activation) MUST(DNN(cudnnDestroyTensorDescriptor)(f.bias_descriptor));
    if (f.activation) MUST(DNN(cudnnDestroyActivationDescriptor)(f.activation));
    for (int i = 0; i < 2 && option("larger", 0); i++) MUST(DNN(cudnnDestroyTensorDescriptor)(larger[i]));
    MUST(DNN(cudnnDestroyConvolutionDescriptor)(window));
    for (int i = 0; i < handles; i++) MUST(DNN(cudnnDestroy)(workers[i].handle));
    return status;
}
