/* Limits set by the program itself. */
#include "../../preload/include/tightfit.h"

/* Sets `SETTINGS` or, for some layers, `SETTINGS@LAYER+LAYER`, and prints what it gave, with the words of an error. */
static void set_limits(const char *text_) {
    tightfitSetLimitsFunction *set = (tightfitSetLimitsFunction *)dlsym(RTLD_DEFAULT, "tightfitSetLimits");
    tightfitLastErrorFunction *error = (tightfitLastErrorFunction *)dlsym(RTLD_DEFAULT, "tightfitLastError");
    char settings[256], *rest = NULL;
    const char *layers[16];
    int count = 0;
    if (!set || !error) {
        printf("set missing\n");
        return;
    }
    snprintf(settings, sizeof settings, "%s", text_);
    char *names = strchr(settings, '@');
    if (names) *names++ = 0;
    for (char *name = names ? strtok_r(names, "+", &rest) : NULL; name; name = strtok_r(NULL, "+", &rest)) layers[count++] = name;
    int result = set(settings, names ? layers : NULL, count);
    if (result < 0) printf("set %d %s\n", result, error());
    else printf("set %d\n", result);
}

/* `toggled=1`: a thread that sets one limit after another until the program is done. */
static volatile int is_done;

static void *toggle(void *nothing) {
    tightfitSetLimitsFunction *set = (tightfitSetLimitsFunction *)dlsym(RTLD_DEFAULT, "tightfitSetLimits");
    static const char *const limits[] = {"workspace=64KiB", "workspace=8KiB", "workspace=1MiB,sizes=undivided", "workspace=0,sizes=default"};
    for (int i = 0; set && !is_done; i++)
        if (set(limits[i % 4], NULL, 0) < 0) printf("set failed\n");
    return nothing;
}

/* `script=`: steps separated by `;`. Plans are those of the network, by place: equal places have equal problems.
 *
 *   set:TEXT     as above                          layer:NAME   the layer of this thread; none without a name
 *   plan:PLACE   one more plan                     run:N, run:NxTIMES   executes the N-th plan
 *   graph:N      captures and launches it          away:NAME:PLACE      one more plan, on a thread and for a layer of its own
 *   launch:xTIMES   launches the last graph again  engine:E             makes the next plans with this engine
 *   time:N       executes it, and prints `time MILLISECONDS` of the device's clock */
static Layer scripted[32];
static int planned;

static void plan_one(int64_t place, Worker worker) { plan_layer(&scripted[planned++], place, worker); }

static void *plan_away(void *argument) {
    char *name = argument, *place = strchr(argument, ':');
    begin();
    *place++ = 0;
    void (*set_layer)(const char *) = (void (*)(const char *))dlsym(RTLD_DEFAULT, "tightfitSetLayer");
    if (set_layer) set_layer(name);
    plan_one(atoi(place), worker());
    return NULL;
}

/* Executes it between two events. */
static Status timed_run(Layer *layer) {
    void *begun = NULL, *ended = NULL;
    float milliseconds = 0;
    MUST(CUDA(cuEventCreate, &begun, 0));
    MUST(CUDA(cuEventCreate, &ended, 0));
    MUST(CUDA(cuEventRecord, begun, layer->worker.stream));
    Status status = DNN(cudnnBackendExecute)(layer->worker.handle, layer->plan, layer->pack);
    MUST(CUDA(cuEventRecord, ended, layer->worker.stream));
    wait_for(layer->worker.stream);
    MUST(CUDA(cuEventElapsedTime, &milliseconds, begun, ended));
    printf("time %.6f\n", milliseconds);
    return status;
}

static Status script(const char *out) {
    char steps[4096], *rest = NULL;
    void *recorded = NULL, *executable = NULL;
    snprintf(steps, sizeof steps, "%s", text("script", ""));
    void (*set_layer)(const char *) = (void (*)(const char *))dlsym(RTLD_DEFAULT, "tightfitSetLayer");
    Worker own = worker();
    for (char *step = strtok_r(steps, ";", &rest); step; step = strtok_r(NULL, ";", &rest)) {
        char *argument = strchr(step, ':');
        *argument++ = 0;
        Layer *layer = &scripted[atoi(argument) % 32];
        if (!strcmp(step, "set")) set_limits(argument);
        else if (!strcmp(step, "layer")) {
            if (set_layer) set_layer(*argument ? argument : NULL);
        } else if (!strcmp(step, "plan")) plan_one(atoi(argument), own);
        else if (!strcmp(step, "away")) {
            pthread_t thread;
            pthread_create(&thread, NULL, plan_away, argument);
            pthread_join(thread, NULL);
        } else if (!strcmp(step, "engine")) next_engine = atoi(argument);
        else if (!strcmp(step, "time")) {
            Status status = timed_run(layer);
            if (status) return status;
        } else {
            int is_graph = !strcmp(step, "graph"), is_launch = !strcmp(step, "launch");
            const char *factor = strchr(argument, 'x');
            void *stream = is_launch ? own.stream : layer->worker.stream;
            for (int i = factor ? atoi(factor + 1) : 1; i > 0; i--) {
                if (is_graph) MUST(CUDA(cuStreamBeginCapture_v2, stream, 2));
                Status status = is_launch ? 0 : DNN(cudnnBackendExecute)(layer->worker.handle, layer->plan, layer->pack);
                if (status) return status;
                if (is_graph) {
                    MUST(CUDA(cuStreamEndCapture, stream, &recorded));
                    MUST(CUDA(cuGraphInstantiateWithFlags, &executable, recorded, (uint64_t)0));
                }
                if (is_graph || is_launch) MUST(CUDA(cuGraphLaunch, executable, stream));
                wait_for(stream);
            }
        }
    }
    for (int i = 0; i < planned && out; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s.%d", out, i);
        write_output(&scripted[i].problem, scripted[i].addresses, path);
    }
    return 0;
}
