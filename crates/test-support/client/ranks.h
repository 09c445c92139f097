/* What the steps of a network do among ranks, and in mid-training.
 *
 *   meeting=FILE ranks=N   each step ends with a collective on the device, which is over when all ranks have come to it; one that
 *                          waits for others for half a minute gives up and prints `alone STEP`. Prints `measured STEP` for each
 *                          step in which memory was taken for a measurement
 *   pause=N                each step begins so many microseconds later
 *   killed=N               the process ends with this step, as by the kernel
 *   hanging=N              from this step on each piece of work takes half a second, for ten steps, of which nobody waits for any;
 *                          prints `hung 1` if the device is still at it then */
#include <stdatomic.h>
#include <sys/mman.h>
#include <fcntl.h>

/* How often ranks have come to collectives, in memory of all of them. */
static _Atomic uint64_t *arrivals;

typedef struct {
    uint64_t step, ranks;
} Collective;

static int come_together(void *data) {
    const Collective *c = data;
    atomic_fetch_add(arrivals, 1);
    int64_t waited = 0;
    for (; atomic_load(arrivals) < (c->step + 1) * c->ranks && waited < 30000000; waited += 100) usleep(100);
    if (waited >= 30000000) printf("alone %llu\n", (unsigned long long)c->step);
    return 0;
}

static uint64_t taken_in_order(void) {
    return ((uint64_t(*)(const char *))required(cuda, "tightfitMockCudaCalls"))("cuMemAllocFromPoolAsync");
}

static void meet(int64_t step, void *stream, uint64_t taken_before) {
    if (!text("meeting", NULL)) return;
    if (!arrivals) {
        int file = open(text("meeting", NULL), O_RDWR | O_CREAT, 0600);
        MUST(ftruncate(file, sizeof *arrivals));
        arrivals = mmap(NULL, sizeof *arrivals, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
    }
    Collective *data = malloc(sizeof *data);
    *data = (Collective){(uint64_t)step, (uint64_t)option("ranks", 1)};
    MUST(CUDA(tightfitMockCudaEnqueue, stream, come_together, free, data, (uint64_t)1000));
    if (taken_in_order() > taken_before) printf("measured %lld\n", (long long)step);
}

/* Before a step; gives whether the host waits for its end. */
static int begin_step(int64_t step, void *stream) {
    int64_t hanging = option("hanging", INT64_MAX);
    if (step == option("killed", -1)) kill(getpid(), SIGKILL);
    if (option("pause", 0)) usleep((useconds_t)option("pause", 0));
    if (step == hanging || step == hanging + 10) {
        void (*delay)(uint64_t, uint64_t) = (void (*)(uint64_t, uint64_t))required(cuda, "tightfitMockCudaDelay");
        if (step > hanging) printf("hung %d\n", CUDA(cuStreamQuery, stream) != 0);
        delay(UINT64_MAX, step == hanging ? 500000 : 0);
    }
    return option("sync", 0) && (step < hanging || step >= hanging + 10);
}
