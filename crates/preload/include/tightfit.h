/* Limits on the workspace of cuDNN's convolutions, set by a program itself while it runs under `tightfit run`, or with
 * libtightfit_preload.so in LD_PRELOAD. The library need not be linked: find the functions at run time, and go on without
 * them where there are none.
 *
 *     tightfitSetLimitsFunction *set = (tightfitSetLimitsFunction *)dlsym(RTLD_DEFAULT, "tightfitSetLimits");
 *     tightfitLastErrorFunction *error = (tightfitLastErrorFunction *)dlsym(RTLD_DEFAULT, "tightfitLastError");
 *     const char *layers[] = {"conv1", "conv2"};
 *     if (set && set("workspace=16MiB", layers, 2) < 0) fprintf(stderr, "%s\n", error());
 *
 * Every function may be called by any thread at any time. None prints or ends the program. */
#ifndef TIGHTFIT_H
#define TIGHTFIT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Errors: values less than 0. */
enum {
    TIGHTFIT_BAD_VALUE = -1, /* a setting, a value or a layer's name is wrong */
    TIGHTFIT_OFF = -2,       /* the library changes nothing in this process, whatever is set */
    TIGHTFIT_FAILED = -3     /* an internal error */
};

/* Sets limits and more for the convolutions that the process plans from now on.
 *
 * settings   what to set, separated by commas; what is not named stays as it is:
 *              workspace=64MiB         the most that each convolution may use: bytes, KiB, MiB, GiB, or unlimited;
 *                                      auto for what the program's own choice for it asks for
 *              total-workspace=1GiB    instead, the most that all together may use; only for all layers
 *              sizes=fit               micro-batch sizes: undivided, power-of-two, all or fit
 *              tune=measure            how configurations are found: measure (between the program's calls), first (before
 *                                      a convolution first runs), cached or heuristic
 *            The value `default` takes back what a call set.
 * layers     the names of `count` layers, as tightfitSetLayer gives them; null, with a count of 0, for all convolutions.
 *            The setting of a layer comes before the setting for all, and both before the environment's.
 *
 * A convolution that was planned before keeps the workspace that was reported to the program, and runs in less where it
 * can. Layers with equal convolutions on one thread share the least of their limits, because frameworks
 * keep one plan for them. A total that is in use on a device keeps its size there.
 *
 * Returns how many convolutions (one operation of one shape on one device each) were planned before and cannot follow:
 * more was reported to the program, or less than the new limit allows, other sizes or another mode would have to be tried,
 * or a CUDA graph has captured them. Less than 0: nothing was changed, and tightfitLastError returns the reason. */
int tightfitSetLimits(const char *settings, const char *const *layers, int count);

/* Describes the last error of tightfitSetLimits on the calling thread, in one line; empty if there was none. The text is
 * valid until the thread's next error. */
const char *tightfitLastError(void);

/* Sets the layer that the calling thread works on, by any name, until its next call; null for none. Call it before a
 * layer plans or runs its convolutions. */
void tightfitSetLayer(const char *name);

typedef int tightfitSetLimitsFunction(const char *settings, const char *const *layers, int count);
typedef const char *tightfitLastErrorFunction(void);
typedef void tightfitSetLayerFunction(const char *name);

#ifdef __cplusplus
}
#endif
#endif
