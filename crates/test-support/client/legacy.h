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
        size_t room = (size_t)option("room", 1 << 20);
        Address scratch;
        MUST(CUDA(cuMemAlloc_v2, &scratch, room));
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
    MUST(BY_OPERATION(p->operation, cudnnGetConvolution, WorkspaceSize)(handle, d[o[0]], d[o[1]], window, d[o[2]], algorithm, &asked));
    if (!count) bytes = asked;
    printf("workspace %zu %zu\n", bytes, asked);
    bytes += (size_t)option("less", 0) ? -(size_t)option("less", 0) : 0;
    Address workspace = 0;
    if (bytes) MUST(CUDA(cuMemAlloc_v2, &workspace, bytes));
    Status status = 0;
    for (int64_t i = 0; i < option("times", 1) && !status; i++)
        status = BY_OPERATION(p->operation, cudnnConvolution, )(handle, &p->alpha, d[o[0]], addresses[o[0]], d[o[1]], addresses[o[1]], window,
                                                              algorithm, workspace, bytes, &p->beta, d[o[2]], addresses[o[2]]);
    int synchronized = CUDA(cuStreamSynchronize, worker_.stream);
    if (synchronized) printf("stream %d\n", synchronized);
    if (!status && out) write_output(p, addresses, out);
    for (int i = 0; i < 3; i++)
        MUST(i == 1 ? DNN(cudnnDestroyFilterDescriptor)(d[i]) : DNN(cudnnDestroyTensorDescriptor)(d[i]));
    MUST(DNN(cudnnDestroyConvolutionDescriptor)(window));
    MUST(DNN(cudnnDestroy)(handle));
    return status;
}
