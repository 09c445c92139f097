/* What a program does between executions.
 *
 *   sync=1       waits for the stream after each execution, as reading a loss does; and, so that tests do not depend on how busy
 *                the machine is, for what the library computes on threads of its own
 *   pause=N      sleeps so many microseconds instead, without a call of the driver
 *   watch=1      waits as well; gives the output its first content before each execution, and compares what it holds then with
 *                what the first execution left: prints `differing COUNT EXECUTIONS`
 *   failing=N    makes the `nth=` call from the N-th execution on of cudnnBackendExecute fail, whoever calls it
 *   counts=1     prints in the end what is alive on the device, and how often this thread waited */
typedef struct {
    int64_t bytes, seen, differing;
    Address output;
    char *content, *first, *now;
} Watch;

static Watch watch_of(const Problem *p, const Address *addresses) {
    Watch w = {0};
    if (!option("watch", 0)) return w;
    int which = p->operation == FORWARD ? 2 : p->operation == DATA ? 0 : 1;
    w.bytes = p->length[which] * bytes_of(p->type), w.output = addresses[which], w.content = content(p, which);
    w.first = malloc(w.bytes), w.now = malloc(w.bytes);
    return w;
}

static void fail_execution(int64_t nth) {
    void *library = getenv("TIGHTFIT_CUDNN") ? dlopen(getenv("TIGHTFIT_CUDNN"), RTLD_LAZY | RTLD_NOLOAD) : RTLD_DEFAULT;
    ((void (*)(const char *, uint64_t, int))required(library, "tightfitMockCudnnFail"))("cudnnBackendExecute", nth, 4000);
}

static void before_execution(Watch *w) {
    if (w->seen == option("failing", -1)) fail_execution(option("nth", 1));
    if (!w->bytes) return;
    MUST(CUDA(cuMemcpyHtoD_v2, w->output, w->content, w->bytes));
    MUST(CUDA(cuCtxSynchronize));
}

/* Whether a thread has a name that begins with `tightfit`. */
static int is_computing(void) {
    DIR *threads = opendir("/proc/self/task");
    int found = 0;
    for (struct dirent *one; threads && (one = readdir(threads));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%.200s/comm", one->d_name);
        FILE *file = one->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (!file) continue;
        found |= fgets(name, sizeof name, file) && !strncmp(name, "tightfit", 8);
        fclose(file);
    }
    if (threads) closedir(threads);
    return found;
}

/* For ten seconds at most. */
static void wait_for_threads(void) {
    for (int i = 0; i < 10000 && is_computing(); i++) usleep(1000);
}

static void wait_for(void *stream) {
    int synchronized = CUDA(cuStreamSynchronize, stream);
    if (synchronized) printf("stream %d\n", synchronized);
    wait_for_threads();
}

static void after_execution(Watch *w, void *stream) {
    if (w->bytes || option("sync", 0)) wait_for(stream);
    if (option("pause", 0)) usleep((useconds_t)option("pause", 0)), wait_for_threads();
    if (!w->bytes) return;
    MUST(CUDA(cuMemcpyDtoH_v2, w->seen ? w->now : w->first, w->output, w->bytes));
    w->differing += w->seen++ && memcmp(w->first, w->now, w->bytes);
}

static void end_watch(Watch *w) {
    if (w->bytes) printf("differing %lld %lld\n", (long long)w->differing, (long long)w->seen);
    free(w->content), free(w->first), free(w->now);
}

static void print_counts(void) {
    uint64_t (*count)(const char *) = (uint64_t(*)(const char *))required(cuda, "tightfitMockCudaCount");
    static const char *const kinds[] = {"allocations", "bytes", "peak-bytes", "host-bytes", "events", "own-synchronizations"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) printf("count %s %llu\n", kinds[i], (unsigned long long)count(kinds[i]));
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "VmHWM:", 6)) printf("count resident-kib %lld\n", strtoll(line + 6, NULL, 10));
    if (file) fclose(file);
}
