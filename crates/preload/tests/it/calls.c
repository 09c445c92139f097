/* Preloaded beside the library: prints at exit how often the stand-ins' functions were called, as `called NAME COUNT`,
 * for the names in TIGHTFIT_TEST_NAMES. A destructor, because it also runs when the program ends early. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t (*calls_of(const char *variable, const char *symbol))(const char *) {
    const char *path = getenv(variable);
    void *library = path ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    return library ? (uint64_t(*)(const char *))dlsym(library, symbol) : NULL;
}

__attribute__((destructor)) static void print_calls(void) {
    uint64_t (*of_driver)(const char *) = calls_of("TIGHTFIT_MOCK_CUDA", "tightfitMockCudaCalls");
    uint64_t (*of_cudnn)(const char *) = calls_of("TIGHTFIT_CUDNN", "tightfitMockCudnnCalls");
    const char *variable = getenv("TIGHTFIT_TEST_NAMES");
    char *names = variable ? strdup(variable) : NULL;
    for (char *name = names ? strtok(names, " ") : NULL; name; name = strtok(NULL, " ")) {
        uint64_t (*of)(const char *) = strncmp(name, "cudnn", 5) ? of_driver : of_cudnn;
        uint64_t count = of ? of(name) : 0;
        if (count) printf("called %s %llu\n", name, (unsigned long long)count);
    }
    fflush(stdout);
}
