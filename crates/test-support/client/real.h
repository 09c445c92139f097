/* What a cuDNN does without a driver: descriptors made, finalized and read back. */
static Status real(const Problem *p) {
    /* Of the backend interface: everything up to the graph, three operations, at addresses used again. */
    for (int operation = 0; operation < 3; operation++) {
        Problem one = *p;
        one.operation = operation;
        MUST(DNN(cudnnBackendDestroyDescriptor)(graph(&one, NULL)));
    }
    /* Of the legacy interface: read back with as much room as the library asks for. */
    int dims[8], strides[8], pads[8], steps[8], ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    int rank = 2 + p->spatial, type = -1, count = -1, format = -1, mode = -1, arithmetic = -1, groups = -1, math = -1;
    for (int i = 0; i < rank; i++) dims[i] = (int)p->dims[0][i], strides[i] = (int)p->strides[0][i];
    for (int i = 0; i < 8; i++) pads[i] = (int)p->pad, steps[i] = (int)p->stride;
    Descriptor x, w, window;
    MUST(DNN(cudnnCreateTensorDescriptor)(&x));
    MUST(DNN(cudnnSetTensorNdDescriptor)(x, p->type, rank, dims, strides));
    MUST(DNN(cudnnGetTensorNdDescriptor)(x, 8, &type, &count, dims, strides));
    printf("tensor %d %d %d %d\n", type, count, dims[0], strides[0]);
    MUST(DNN(cudnnCreateFilterDescriptor)(&w));
    MUST(DNN(cudnnSetFilterNdDescriptor)(w, p->type, 1, rank, dims));
    MUST(DNN(cudnnGetFilterNdDescriptor)(w, 8, &type, &format, &count, dims));
    printf("filter %d %d %d %d\n", type, format, count, dims[0]);
    MUST(DNN(cudnnCreateConvolutionDescriptor)(&window));
    MUST(DNN(cudnnSetConvolutionNdDescriptor)(window, p->spatial, pads, steps, ones, 1, p->arithmetic));
    MUST(DNN(cudnnGetConvolutionNdDescriptor)(window, 6, &count, pads, steps, ones, &mode, &arithmetic));
    MUST(DNN(cudnnGetConvolutionGroupCount)(window, &groups));
    MUST(DNN(cudnnGetConvolutionMathType)(window, &math));
    printf("convolution %d %d %d %d %d\n", count, pads[0], mode, arithmetic, groups);
    return 0;
}
