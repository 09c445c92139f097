// Kernels that cuDNN and cuBLAS lack or run slower: the loss's gradient, dropout, gradients of biases, the solver, conversion,
// batch normalization. Speed over cuDNN's on an H200: copies of some channels 20x, the gradient of max pooling 2x,
// ReLU in 16 bits 2x.
//
// Compiled by scripts/compile-kernels.py to kernels.ptx (with PLAIN defined), kernels_norm.ptx (NORMALIZATION) and
// kernels_last.ptx (CHANNELS_LAST: maps of 16-bit types with their channels last). The latter two are only loaded where they are
// needed. There are no fused multiply-adds, so that elementwise results round as on a CPU. Every sum has a fixed order, so a
// kernel has the same bits in every run. All kernels are launched with blocks of 256 threads. mock-cuda has the same functions
// for the CPU.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Values that change from step to step. They are read from device memory, so that a captured step stays valid.
struct Iteration {
    u64 step, seed;
    float learning_rate, momentum, weight_decay, loss_scale;
    // For AdamW, whose first beta is the momentum: the second beta, and the corrections of the moments in the first steps.
    float beta2, epsilon, first_correction, second_correction;
};

struct F32 {
    typedef float type;
    static __device__ float load(const type *at, u64 i) { return at[i]; }
    static __device__ void store(type *at, u64 i, float value) { at[i] = value; }
};

struct F16 {
    typedef u16 type;
    static __device__ float load(const type *at, u64 i) {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(at[i]));
        return value;
    }
    static __device__ void store(type *at, u64 i, float value) {
        u16 bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
        at[i] = bits;
    }
};

struct Bf16 {
    typedef u16 type;
    static __device__ float load(const type *at, u64 i) { return __uint_as_float((u32)at[i] << 16); }
    static __device__ void store(type *at, u64 i, float value) {
        u32 bits = __float_as_uint(value);
        bool nan = (bits & 0x7fffffff) > 0x7f800000;
        at[i] = nan ? 0x7fff : (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
};

static __device__ u64 thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
static __device__ u64 threads() { return (u64)gridDim.x * blockDim.x; }

// SplitMix64's finalizer (Steele, Lea, Flood 2014).
static __device__ u64 mix(u64 z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

// dx = (p - 1 at the label) * loss scale / batch, added to dx or over it.
template <typename T>
static __device__ void loss_gradient(const typename T::type *p, const u32 *labels, typename T::type *dx, u64 len,
                                     u32 classes, float batch, u32 add, const Iteration *now) {
    float scale = now->loss_scale / batch;
    for (u64 i = thread(); i < len; i += threads()) {
        float target = labels[i / classes] == i % classes ? 1.0f : 0.0f;
        float value = (T::load(p, i) - target) * scale;
        T::store(dx, i, add ? T::load(dx, i) + value : value);
    }
}

// Draws which elements stay (mask 1): y = x * scale there, 0 elsewhere. Seed, layer, step and the element's place in the
// mini-batch determine the draw; `first` is the place of the first element. The place counts samples as `channels` by `area`,
// while here they are `area` by `channels`.
template <typename T>
static __device__ void dropout(const typename T::type *x, typename T::type *y, u8 *mask, u64 len, u32 channels, u32 area,
                               u64 first, u64 layer, u64 threshold, float scale, const Iteration *now) {
    const u64 golden = 0x9E3779B97F4A7C15ull;
    u64 key = mix(now->seed + golden);
    key = mix((key ^ layer) + golden);
    key = mix((key ^ now->step) + golden);
    for (u64 i = thread(); i < len; i += threads()) {
        u64 place = area == 1 ? i : (i / channels / area * channels + i % channels) * area + i / channels % area;
        bool kept = mix(key + golden * (first + place + 1)) >> 32 >= threshold;
        mask[i] = kept;
        T::store(y, i, kept ? T::load(x, i) * scale : 0.0f);
    }
}

// y = x * scale where the mask is 1, 0 elsewhere; added to y or over it.
template <typename T>
static __device__ void masked(const typename T::type *x, typename T::type *y, const u8 *mask, u64 len, float scale, u32 add) {
    for (u64 i = thread(); i < len; i += threads()) {
        float value = mask[i] ? T::load(x, i) * scale : 0.0f;
        T::store(y, i, add ? T::load(y, i) + value : value);
    }
}

// Sums dy (n, c, area) over the area and every gridDim.y-th sample: partial (c, gridDim.y). A part has fewer than 2^31 elements
// of a channel.
template <typename T>
static __device__ void channel_sums(const typename T::type *dy, float *partial, u32 samples, u32 channels, u32 area) {
    __shared__ float sums[256];
    u32 channel = blockIdx.x, part = blockIdx.y, parts = gridDim.y;
    u32 own = part < samples ? (samples - part + parts - 1) / parts : 0;
    float sum = 0.0f;
    for (u32 j = threadIdx.x; j < own * area; j += blockDim.x) {
        u32 sample = part + parts * (j / area), at = j % area;
        sum += T::load(dy, ((u64)sample * channels + channel) * area + at);
    }
    sums[threadIdx.x] = sum;
    for (u32 half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) partial[(u64)channel * parts + part] = sums[0];
}

// db = the sum of each channel's parts.
#ifdef PLAIN
extern "C" __global__ void sum_parts(const float *partial, float *db, u32 channels, u32 parts) {
    for (u64 channel = thread(); channel < channels; channel += threads()) {
        float sum = 0.0f;
        for (u32 part = 0; part < parts; part++) sum += partial[channel * parts + part];
        db[channel] = sum;
    }
}
#endif

// Stochastic gradient descent with weight decay, and with momentum unless `change` is null; `stored` gets the weights in the
// type of the arithmetic.
template <typename T>
static __device__ void update(float *w, const float *dw, float *change, typename T::type *stored, u64 len,
                              const Iteration *now) {
    for (u64 i = thread(); i < len; i += threads()) {
        float gradient = dw[i] / now->loss_scale + now->weight_decay * w[i];
        float moved = now->momentum * (change ? change[i] : 0.0f) + now->learning_rate * gradient;
        if (change) change[i] = moved;
        float weight = w[i] - moved;
        w[i] = weight;
        if (stored) T::store(stored, i, weight);
    }
}

// AdamW: the moments of the gradient, and weight decay apart from them.
template <typename T>
static __device__ void adamw(float *w, const float *dw, float *first, float *second, typename T::type *stored, u64 len,
                             const Iteration *now) {
    float kept = 1.0f - now->learning_rate * now->weight_decay, rate = now->learning_rate / now->first_correction;
    for (u64 i = thread(); i < len; i += threads()) {
        float gradient = dw[i] / now->loss_scale;
        float m = now->momentum * first[i] + (1.0f - now->momentum) * gradient;
        float v = now->beta2 * second[i] + (1.0f - now->beta2) * (gradient * gradient);
        float weight = kept * w[i] - rate * m / (sqrtf(v) / now->second_correction + now->epsilon);
        first[i] = m;
        second[i] = v;
        w[i] = weight;
        if (stored) T::store(stored, i, weight);
    }
}

// sum = x, or sum + x.
template <typename T>
static __device__ void widen(const typename T::type *x, float *sum, u64 len, u32 add) {
    for (u64 i = thread(); i < len; i += threads()) sum[i] = add ? sum[i] + T::load(x, i) : T::load(x, i);
}

template <typename T>
union Wide {
    uint4 all;
    typename T::type each[16 / sizeof(typename T::type)];
};

// y = x, but 0 where x is negative; y may be x. Sixteen bytes at once where both addresses allow it.
template <typename T>
static __device__ void relu(const typename T::type *x, typename T::type *y, u64 len) {
    const u64 count = sizeof(Wide<T>) / sizeof(typename T::type), flight = 4;
    u64 packs = ((u64)x | (u64)y) % sizeof(Wide<T>) == 0 ? len / count : 0;
    for (u64 i = thread(); i < packs; i += flight * threads()) {
        Wide<T> pack[flight];
#pragma unroll
        for (u64 k = 0; k < flight; k++) {
            if (i + k * threads() < packs) pack[k] = ((const Wide<T> *)x)[i + k * threads()];
        }
#pragma unroll
        for (u64 k = 0; k < flight; k++) {
            if (i + k * threads() >= packs) break;
#pragma unroll
            for (u32 j = 0; j < count; j++) {
                if (T::load(pack[k].each, j) < 0.0f) pack[k].each[j] = 0;
            }
            ((Wide<T> *)y)[i + k * threads()] = pack[k];
        }
    }
    for (u64 i = packs * count + thread(); i < len; i += threads()) y[i] = T::load(x, i) < 0.0f ? (typename T::type)0 : x[i];
}

// dx = dy where y is positive, 0 elsewhere, added to dx or over it; dx may be dy.
template <typename T>
static __device__ void relu_gradient(const typename T::type *y, const typename T::type *dy, typename T::type *dx, u64 len,
                                     u32 add) {
    const u64 count = sizeof(Wide<T>) / sizeof(typename T::type), flight = 2;
    u64 packs = ((u64)y | (u64)dy | (u64)dx) % sizeof(Wide<T>) == 0 ? len / count : 0;
    for (u64 i = thread(); i < packs; i += flight * threads()) {
        Wide<T> value[flight], gradient[flight], sum[flight];
#pragma unroll
        for (u64 k = 0; k < flight; k++) {
            u64 at = i + k * threads();
            if (at >= packs) break;
            value[k] = ((const Wide<T> *)y)[at];
            gradient[k] = ((const Wide<T> *)dy)[at];
            if (add) sum[k] = ((const Wide<T> *)dx)[at];
        }
#pragma unroll
        for (u64 k = 0; k < flight; k++) {
            u64 at = i + k * threads();
            if (at >= packs) break;
#pragma unroll
            for (u32 j = 0; j < count; j++) {
                if (!(T::load(value[k].each, j) > 0.0f)) gradient[k].each[j] = 0;
                if (add) T::store(gradient[k].each, j, T::load(sum[k].each, j) + T::load(gradient[k].each, j));
            }
            ((Wide<T> *)dx)[at] = gradient[k];
        }
    }
    for (u64 i = packs * count + thread(); i < len; i += threads()) {
        float result = T::load(y, i) > 0.0f ? T::load(dy, i) : 0.0f;
        T::store(dx, i, add ? T::load(dx, i) + result : result);
    }
}

// Each row of y = the row of x, or the sum of both, with `relu` 0 where that is negative. Rows have `width` elements, `x_row` and
// `y_row` from one row to the next. Sixteen bytes at once where all addresses allow it.
template <typename T>
static __device__ void copy_rows(const typename T::type *x, typename T::type *y, u64 rows, u64 width, u64 x_row, u64 y_row,
                                 u32 add, u32 relu) {
    const u64 count = sizeof(Wide<T>) / sizeof(typename T::type);
    bool wide = ((u64)x | (u64)y) % sizeof(Wide<T>) == 0 && (width | x_row | y_row) % count == 0;
    for (u64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const typename T::type *from = x + row * x_row;
        typename T::type *to = y + row * y_row;
        if (wide) {
            for (u64 i = thread(); i < width / count; i += threads()) {
                Wide<T> value = ((const Wide<T> *)from)[i];
                if (add) {
                    Wide<T> sum = ((Wide<T> *)to)[i];
                    for (u32 j = 0; j < count; j++)
                        T::store(value.each, j, T::load(sum.each, j) + T::load(value.each, j));
                }
                if (relu) {
                    for (u32 j = 0; j < count; j++)
                        if (T::load(value.each, j) < 0.0f) value.each[j] = 0;
                }
                ((Wide<T> *)to)[i] = value;
            }
        } else {
            for (u64 i = thread(); i < width; i += threads()) {
                float value = add ? T::load(to, i) + T::load(from, i) : T::load(from, i);
                T::store(to, i, relu && value < 0.0f ? 0.0f : value);
            }
        }
    }
}

// Division of numbers below 2^31 by a fixed number, without dividing (Granlund, Montgomery 1994).
struct Divisor {
    u32 factor, shift;
    __device__ void set(u32 by) {
        shift = by > 1 ? 32 - __clz(by - 1) : 0;
        factor = (u32)((((u64)1 << 32) * (((u64)1 << shift) - by)) / by + 1);
    }
    __device__ u32 divide(u32 number) const { return (__umulhi(number, factor) + number) >> shift; }
};

// A pooling along one axis, and the number of inputs that a block takes of it.
struct Axis {
    u32 input, output, filter, stride, pad, tile;
    __device__ u32 begin(u32 window) const { return window * stride < pad ? 0 : window * stride - pad; }
    __device__ u32 end(u32 window) const { return min(window * stride + filter - pad, input); }
};

// The inputs of a block along one axis, and the windows that hold any of them.
struct Tile {
    u32 begin, inputs, first, windows;
    Divisor by_inputs, by_windows, by_stride;
    __device__ void set(const Axis &axis, u32 index) {
        by_stride.set(axis.stride);
        begin = index * axis.tile, inputs = min(axis.tile, axis.input - begin);
        first = first_of(axis, begin), windows = max((int)(end_of(axis, begin + inputs - 1) - first), 0);
        by_inputs.set(inputs), by_windows.set(max(windows, 1));
    }
    // The windows that hold an input: from the first to before the end.
    __device__ u32 first_of(const Axis &axis, u32 at) const {
        return at + axis.pad < axis.filter ? 0 : by_stride.divide(at + axis.pad - axis.filter) + 1;
    }
    __device__ u32 end_of(const Axis &axis, u32 at) const { return min(by_stride.divide(at + axis.pad) + 1, axis.output); }
};

// dx = the sum of dy over the windows of which x is the first largest element, in the windows' order, added to dx or over it. A
// block finds the places of the largest elements of all windows that hold any of its inputs, of `per` planes at once, at most
// 4096. Then each input looks where it was found. blockIdx.x counts tiles, the last axis fastest. Many threads at once matter
// most: few registers, hence no unrolled loops, take 0.7 times as long.
template <typename T>
static __device__ void max_pooling_gradient(const typename T::type *x, const typename T::type *y, const typename T::type *dy,
                                            typename T::type *dx, u64 planes, Axis d, Axis h, Axis w, u32 per, u32 add) {
    __shared__ u32 places[4096];
    __shared__ Tile tiles[3];
    u32 lines = (h.input + h.tile - 1) / h.tile, columns = (w.input + w.tile - 1) / w.tile;
    // A thread each, of different warps.
    if (threadIdx.x == 0) tiles[0].set(d, blockIdx.x / columns / lines);
    if (threadIdx.x == 32) tiles[1].set(h, blockIdx.x / columns % lines);
    if (threadIdx.x == 64) tiles[2].set(w, blockIdx.x % columns);
    __syncthreads();
    const Tile &depth = tiles[0], &line = tiles[1], &column = tiles[2];
    u32 inputs = depth.inputs * line.inputs * column.inputs, windows = depth.windows * line.windows * column.windows;
    u64 plane_inputs = (u64)d.input * h.input * w.input, plane_outputs = (u64)d.output * h.output * w.output;
    for (u64 first = (u64)blockIdx.y * per; first < planes; first += (u64)gridDim.y * per) {
        u32 count = planes - first < per ? planes - first : per;
        for (u32 t = threadIdx.x; t < count * windows; t += blockDim.x) {
            u32 row = column.by_windows.divide(t), slice = line.by_windows.divide(row), plane = depth.by_windows.divide(slice);
            u32 o = depth.first + slice - plane * depth.windows, p = line.first + row - slice * line.windows;
            u32 q = column.first + t - row * column.windows, place = 0xffffffff;
            const typename T::type *own = x + (first + plane) * plane_inputs;
            float largest = T::load(y, (first + plane) * plane_outputs + (o * h.output + p) * w.output + q);
            u32 i_end = d.end(o), j_begin = h.begin(p), j_end = h.end(p), k_begin = w.begin(q), k_end = w.end(q);
#pragma unroll 1
            for (u32 i = d.begin(o); i < i_end; i++) {
                for (u32 j = j_begin; j < j_end; j++) {
                    u32 begin = (i * h.input + j) * w.input;
#pragma unroll 1
                    for (u32 k = k_begin; k < k_end; k++) {
                        if (T::load(own, begin + k) == largest) place = min(place, begin + k);
                    }
                }
            }
            places[t] = place;
        }
        __syncthreads();
        for (u32 t = threadIdx.x; t < count * inputs; t += blockDim.x) {
            u32 row = column.by_inputs.divide(t), slice = line.by_inputs.divide(row), plane = depth.by_inputs.divide(slice);
            u32 i = depth.begin + slice - plane * depth.inputs, j = line.begin + row - slice * line.inputs;
            u32 k = column.begin + t - row * column.inputs, place = (i * h.input + j) * w.input + k;
            u64 at = (first + plane) * plane_inputs + place;
            float sum = add ? T::load(dx, at) : 0.0f;
            u32 o_end = depth.end_of(d, i), p_begin = line.first_of(h, j), p_end = line.end_of(h, j);
            u32 q_begin = column.first_of(w, k), q_end = column.end_of(w, k);
            for (u32 o = depth.first_of(d, i); o < o_end; o++) {
                for (u32 p = p_begin; p < p_end; p++) {
                    u32 found = plane * windows + ((o - depth.first) * line.windows + p - line.first) * column.windows;
#pragma unroll 1
                    for (u32 q = q_begin; q < q_end; q++) {
                        if (places[found + q - column.first] == place)
                            sum += T::load(dy, (first + plane) * plane_outputs + (o * h.output + p) * w.output + q);
                    }
                }
            }
            T::store(dx, at, sum);
        }
        __syncthreads();
    }
}

// With the channels last, a map is rows of channels, one for each place of each sample. A block takes `lanes` packs of N
// neighbors each from 256 / lanes rows at once. blockIdx.x counts groups of `lanes` packs, blockIdx.y the blocks that share a
// group.
template <typename T, int N>
struct Pack {
    union {
        uint4 all;
        typename T::type each[N];
    };
    __device__ void load(const typename T::type *at) { all = *(const uint4 *)at; }
    __device__ void store(typename T::type *at) const { *(uint4 *)at = all; }
    __device__ float get(u32 i) const { return T::load(each, i); }
    __device__ void set(u32 i, float value) { T::store(each, i, value); }
};

template <typename T>
struct Pack<T, 1> {
    typename T::type each[1];
    __device__ void load(const typename T::type *at) { each[0] = *at; }
    __device__ void store(typename T::type *at) const { *at = each[0]; }
    __device__ float get(u32) const { return T::load(each, 0); }
    __device__ void set(u32, float value) { T::store(each, 0, value); }
};

// The rows and the first channel of a thread.
struct Rows {
    u64 first, step;
    u32 channel;
    bool any;
    __device__ Rows(u32 channels, u32 lanes, u32 width) {
        u32 own = threadIdx.x / lanes, count = blockDim.x / lanes;
        first = (u64)blockIdx.y * count + own, step = (u64)gridDim.y * count;
        channel = (blockIdx.x * lanes + threadIdx.x % lanes) * width;
        any = own < count && channel < channels;
    }
};

// Adds up the sums of a block's threads for each channel, K sums each: partial (gridDim.y, K, channels).
template <int K, int N>
static __device__ void store_partial(float (&sum)[K][N], float *partial, u32 channels, u32 lanes) {
    // One row more than threads, so that neighbors are in different banks.
    __shared__ float all[K * N * 264];
    u32 count = blockDim.x / lanes;
#pragma unroll
    for (u32 k = 0; k < K; k++) {
#pragma unroll
        for (u32 j = 0; j < N; j++) all[(k * N + j) * 264 + threadIdx.x] = sum[k][j];
    }
    __syncthreads();
    for (u32 t = threadIdx.x; t < K * N * lanes; t += blockDim.x) {
        u32 which = t / lanes, lane = t % lanes, channel = (blockIdx.x * lanes + lane) * N + which % N;
        float total = 0.0f;
#pragma unroll 1
        for (u32 own = 0; own < count; own++) total += all[which * 264 + own * lanes + lane];
        if (channel < channels) partial[((u64)blockIdx.y * K + which / N) * channels + channel] = total;
    }
}

// The sums of all parts of eight channels a block: the first eight threads have the channels' totals.
template <int K>
static __device__ void total_parts(const float *partial, u32 channels, u32 parts, double (&total)[K]) {
    __shared__ double all[K * 256];
    u32 channel = blockIdx.x * 8 + threadIdx.x % 8;
    double sum[K] = {};
    if (channel < channels) {
        for (u32 part = threadIdx.x / 8; part < parts; part += 32) {
#pragma unroll
            for (u32 k = 0; k < K; k++) sum[k] += partial[((u64)part * K + k) * channels + channel];
        }
    }
#pragma unroll
    for (u32 k = 0; k < K; k++) all[k * 256 + threadIdx.x] = sum[k];
    for (u32 half = 128; half >= 8; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
#pragma unroll
            for (u32 k = 0; k < K; k++) all[k * 256 + threadIdx.x] += all[k * 256 + threadIdx.x + half];
        }
    }
#pragma unroll
    for (u32 k = 0; k < K; k++) total[k] = all[k * 256 + threadIdx.x % 8];
}

// The channels first: a channel has a plane of `area` elements in each sample. A block takes 256 / lanes channels with `lanes`
// threads for each. blockIdx.x counts groups of that number of channels, blockIdx.y the blocks that share a group. The packs of a
// channel are counted over all samples, fewer than 2^31.
struct Planes {
    u64 sample, plane;
    u32 first, end, step, channel, packs, width;
    bool any;
    Divisor by;
    __device__ Planes(u32 samples, u32 channels, u32 area, u32 lanes, u32 pack) {
        __shared__ Divisor shared;
        packs = area / pack, width = pack, step = lanes;
        if (threadIdx.x == 0) shared.set(packs);
        __syncthreads();
        by = shared;
        u32 own = threadIdx.x / lanes, count = blockDim.x / lanes;
        channel = blockIdx.x * count + own;
        any = own < count && channel < channels;
        plane = (u64)channel * area, sample = (u64)channels * area;
        u32 all = samples * packs, each = (all + gridDim.y - 1) / gridDim.y;
        first = blockIdx.y * each + threadIdx.x % lanes, end = min((blockIdx.y + 1) * each, all);
    }
    // Where one of the packs is.
    __device__ u64 at(u32 index) const {
        u32 in = by.divide(index);
        return in * sample + plane + (index - in * packs) * width;
    }
};

// Adds up the sums of each channel's threads, K sums each: partial (gridDim.y, K, channels).
template <int K, int N>
static __device__ void store_planes(const float (&sum)[K][N], const Planes &own, float *partial, u32 channels) {
    __shared__ float all[K * 256];
    u32 lane = threadIdx.x % own.step;
#pragma unroll
    for (u32 k = 0; k < K; k++) {
        float total = sum[k][0];
#pragma unroll
        for (u32 j = 1; j < N; j++) total += sum[k][j];
        all[k * 256 + threadIdx.x] = total;
    }
    for (u32 half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (own.any && lane < half && lane + half < own.step) {
#pragma unroll
            for (u32 k = 0; k < K; k++) all[k * 256 + threadIdx.x] += all[k * 256 + threadIdx.x + half];
        }
    }
    if (!own.any || lane > 0) return;
#pragma unroll
    for (u32 k = 0; k < K; k++) partial[((u64)blockIdx.y * K + k) * channels + own.channel] = all[k * 256 + threadIdx.x];
}

// How many packs of planes a thread has in flight.
template <int N>
struct Flight {
    static const u32 one = N == 1 ? 8 : 4, two = N == 1 ? 4 : 2;
};

// Sums of each channel, and of its squares, minus the channel's first element, so that a large mean does not hide a small
// variance.
template <typename T, int N>
static __device__ void norm_sums(const typename T::type *x, float *partial, u32 samples, u32 channels, u32 area, u32 lanes) {
    const u32 flight = Flight<N>::one;
    Planes own(samples, channels, area, lanes, N);
    float sum[2][N] = {};
    if (own.any) {
        float first = T::load(x, own.plane);
        for (u32 i = own.first; i < own.end; i += flight * own.step) {
            Pack<T, N> pack[flight];
#pragma unroll
            for (u32 k = 0; k < flight; k++) {
                if (i + k * own.step < own.end) pack[k].load(x + own.at(i + k * own.step));
            }
#pragma unroll
            for (u32 k = 0; k < flight; k++) {
                if (i + k * own.step < own.end) {
#pragma unroll
                    for (u32 j = 0; j < N; j++) {
                        float value = pack[k].get(j) - first;
                        sum[0][j] += value;
                        sum[1][j] += value * value;
                    }
                }
            }
        }
    }
    store_planes<2, N>(sum, own, partial, channels);
}

// The same with the channels last.
template <typename T, int N>
static __device__ void norm_sums_last(const typename T::type *x, float *partial, u64 rows, u32 channels, u32 lanes) {
    Rows own(channels, lanes, N);
    float sum[2][N] = {};
    if (own.any) {
        Pack<T, N> first;
        first.load(x + own.channel);
#pragma unroll 4
        for (u64 row = own.first; row < rows; row += own.step) {
            Pack<T, N> pack;
            pack.load(x + row * channels + own.channel);
#pragma unroll
            for (u32 j = 0; j < N; j++) {
                float value = pack.get(j) - first.get(j);
                sum[0][j] += value;
                sum[1][j] += value * value;
            }
        }
    }
    store_partial<2, N>(sum, partial, channels, lanes);
}

// Moves the running mean and variance of a channel by `share` of the way to the statistics of `count` elements.
static __device__ void norm_move(float *running_mean, float *running_variance, u32 channel, float mean, double variance,
                                 u64 count, float share) {
    float unbiased = (float)(variance * ((double)count / max((double)count - 1.0, 1.0)));
    running_mean[channel] = running_mean[channel] * (1.0f - share) + mean * share;
    running_variance[channel] = running_variance[channel] * (1.0f - share) + unbiased * share;
}

// The variance for an inverse deviation.
static __device__ double norm_variance(float deviation, float epsilon) {
    double root = 1.0 / (double)deviation;
    return max(root * root - epsilon, 0.0);
}

// Mean and inverse deviation of each channel, from these sums over `count` elements and from `before` other elements, whose mean
// and inverse deviation are there. Moves the running mean and variance, if there are any. `plane` is the distance from the first
// element of a channel to the first one of the next channel.
template <typename T>
static __device__ void norm_statistics(const typename T::type *x, const float *partial, float *mean, float *deviation,
                                       float *running_mean, float *running_variance, u64 count, u64 before, u64 plane,
                                       u32 channels, u32 parts, float share, float epsilon) {
    double total[2];
    total_parts<2>(partial, channels, parts, total);
    u32 channel = blockIdx.x * 8 + threadIdx.x;
    if (threadIdx.x >= 8 || channel >= channels) return;
    double beyond = total[0] / count, variance = max(total[1] / count - beyond * beyond, 0.0);
    float middle = T::load(x, channel * plane) + (float)beyond;
    if (before) {
        double own = (double)count / ((double)before + (double)count), apart = (double)middle - (double)mean[channel];
        variance = norm_variance(deviation[channel], epsilon) * (1.0 - own) + variance * own + apart * apart * own * (1.0 - own);
        middle = (float)((double)mean[channel] + apart * own);
    }
    mean[channel] = middle;
    deviation[channel] = (float)(1.0 / sqrt(variance + epsilon));
    if (running_mean) norm_move(running_mean, running_variance, channel, middle, variance, count, share);
}

// Moves the running statistics to the statistics of a mini-batch that came in parts, of `count` elements in all.
#ifdef NORMALIZATION
extern "C" __global__ void norm_running(const float *mean, const float *deviation, float *running_mean,
                                        float *running_variance, u64 count, u32 channels, float share, float epsilon) {
    u32 channel = blockIdx.x * 256 + threadIdx.x;
    if (channel >= channels) return;
    double variance = norm_variance(deviation[channel], epsilon);
    norm_move(running_mean, running_variance, channel, mean[channel], variance, count, share);
}
#endif

// How a channel is normalized; `second` is its variance if `epsilon` is not negative, else its inverse deviation.
struct Normal {
    float middle, factor, beyond;
    __device__ void set(u32 channel, const float *mean, const float *second, const float *scale, const float *shift,
                        float epsilon) {
        float deviation = epsilon < 0.0f ? second[channel] : 1.0f / sqrtf(second[channel] + epsilon);
        middle = mean[channel], factor = scale[channel] * deviation, beyond = shift[channel];
    }
    __device__ float of(float x) const { return (x - middle) * factor + beyond; }
    // The same, where a ReLU may follow.
    __device__ float of(float x, u32 relu) const { return relu && of(x) < 0.0f ? 0.0f : of(x); }
    // dy, or 0 where a ReLU after the normalization cut the element.
    __device__ float passed(float x, float dy, u32 relu) const { return relu && !(of(x) > 0.0f) ? 0.0f : dy; }
};

// y = x normalized, with `relu` 0 where that is negative; y may be x.
template <typename T, int N>
static __device__ void norm_apply(const typename T::type *x, typename T::type *y, const float *mean, const float *second,
                                  const float *scale, const float *shift, u32 samples, u32 channels, u32 area, u32 lanes,
                                  float epsilon, u32 relu) {
    const u32 flight = Flight<N>::one;
    Planes own(samples, channels, area, lanes, N);
    if (!own.any) return;
    Normal normal;
    normal.set(own.channel, mean, second, scale, shift, epsilon);
    for (u32 i = own.first; i < own.end; i += flight * own.step) {
        Pack<T, N> pack[flight];
#pragma unroll
        for (u32 k = 0; k < flight; k++) {
            if (i + k * own.step < own.end) pack[k].load(x + own.at(i + k * own.step));
        }
#pragma unroll
        for (u32 k = 0; k < flight; k++) {
            if (i + k * own.step < own.end) {
#pragma unroll
                for (u32 j = 0; j < N; j++) pack[k].set(j, normal.of(pack[k].get(j), relu));
                pack[k].store(y + own.at(i + k * own.step));
            }
        }
    }
}

// The same with the channels last.
template <typename T, int N>
static __device__ void norm_apply_last(const typename T::type *x, typename T::type *y, const float *mean, const float *second,
                                       const float *scale, const float *shift, u64 rows, u32 channels, u32 lanes,
                                       float epsilon, u32 relu) {
    Rows own(channels, lanes, N);
    if (!own.any) return;
    Normal normal[N];
#pragma unroll
    for (u32 j = 0; j < N; j++) normal[j].set(own.channel + j, mean, second, scale, shift, epsilon);
    for (u64 row = own.first; row < rows; row += 4 * own.step) {
        Pack<T, N> pack[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            if (row + k * own.step < rows) pack[k].load(x + (row + k * own.step) * channels + own.channel);
        }
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            if (row + k * own.step < rows) {
#pragma unroll
                for (u32 j = 0; j < N; j++) pack[k].set(j, normal[j].of(pack[k].get(j), relu));
                pack[k].store(y + (row + k * own.step) * channels + own.channel);
            }
        }
    }
}

// Sums of the gradient of each channel, and of its products with x minus the mean. With `relu`, dy is the gradient after a ReLU.
template <typename T, int N>
static __device__ void norm_gradient_sums(const typename T::type *x, const typename T::type *dy, const float *mean,
                                          const float *deviation, const float *scale, const float *shift, float *partial,
                                          u32 samples, u32 channels, u32 area, u32 lanes, u32 relu) {
    const u32 flight = Flight<N>::two;
    Planes own(samples, channels, area, lanes, N);
    float sum[2][N] = {};
    if (own.any) {
        Normal normal;
        normal.set(own.channel, mean, deviation, scale, shift, -1.0f);
        for (u32 i = own.first; i < own.end; i += flight * own.step) {
            Pack<T, N> value[flight], gradient[flight];
#pragma unroll
            for (u32 k = 0; k < flight; k++) {
                if (i + k * own.step < own.end) {
                    u64 at = own.at(i + k * own.step);
                    value[k].load(x + at);
                    gradient[k].load(dy + at);
                }
            }
#pragma unroll
            for (u32 k = 0; k < flight; k++) {
                if (i + k * own.step < own.end) {
#pragma unroll
                    for (u32 j = 0; j < N; j++) {
                        float passed = normal.passed(value[k].get(j), gradient[k].get(j), relu);
                        sum[0][j] += passed;
                        sum[1][j] += passed * (value[k].get(j) - normal.middle);
                    }
                }
            }
        }
    }
    store_planes<2, N>(sum, own, partial, channels);
}

// The same with the channels last.
template <typename T, int N>
static __device__ void norm_gradient_sums_last(const typename T::type *x, const typename T::type *dy, const float *mean,
                                               const float *deviation, const float *scale, const float *shift, float *partial,
                                               u64 rows, u32 channels, u32 lanes, u32 relu) {
    Rows own(channels, lanes, N);
    float sum[2][N] = {};
    if (own.any) {
        Normal normal[N];
#pragma unroll
        for (u32 j = 0; j < N; j++) normal[j].set(own.channel + j, mean, deviation, scale, shift, -1.0f);
#pragma unroll 2
        for (u64 row = own.first; row < rows; row += own.step) {
            Pack<T, N> value, gradient;
            value.load(x + row * channels + own.channel);
            gradient.load(dy + row * channels + own.channel);
#pragma unroll
            for (u32 j = 0; j < N; j++) {
                float passed = normal[j].passed(value.get(j), gradient.get(j), relu);
                sum[0][j] += passed;
                sum[1][j] += passed * (value.get(j) - normal[j].middle);
            }
        }
    }
    store_partial<2, N>(sum, partial, channels, lanes);
}

// The gradients of scales and shifts from these sums, added to the gradients of other parts of the mini-batch or over them.
#ifdef NORMALIZATION
extern "C" __global__ void norm_gradients(const float *partial, const float *deviation, float *scale_gradient,
                                          float *shift_gradient, u32 channels, u32 parts, u32 add) {
    double total[2];
    total_parts<2>(partial, channels, parts, total);
    u32 channel = blockIdx.x * 8 + threadIdx.x;
    if (threadIdx.x >= 8 || channel >= channels) return;
    float scale = (float)(total[1] * deviation[channel]), shift = (float)total[0];
    scale_gradient[channel] = add ? scale_gradient[channel] + scale : scale;
    shift_gradient[channel] = add ? shift_gradient[channel] + shift : shift;
}
#endif

// The gradient of the normalization of a channel with `count` elements in the mini-batch.
struct Gradient : Normal {
    float slope, offset;
    __device__ void set(u32 channel, const float *mean, const float *deviation, const float *scale, const float *shift,
                        const float *scale_gradient, const float *shift_gradient, float count) {
        Normal::set(channel, mean, deviation, scale, shift, -1.0f);
        slope = factor * deviation[channel] * (scale_gradient[channel] / count);
        offset = factor * (shift_gradient[channel] / count);
    }
    __device__ float of(float x, float dy, u32 relu) const { return factor * passed(x, dy, relu) - slope * (x - middle) - offset; }
};

// dx = the gradient of the normalization, added to dx or over it; dx may be dy. With `relu`, dy is the gradient after a ReLU.
template <typename T, int N>
static __device__ void norm_gradient(const typename T::type *x, const typename T::type *dy, typename T::type *dx,
                                     const float *mean, const float *deviation, const float *scale, const float *shift,
                                     const float *scale_gradient, const float *shift_gradient, u64 count, u32 samples,
                                     u32 channels, u32 area, u32 lanes, u32 add, u32 relu) {
    const u32 flight = Flight<N>::two;
    Planes own(samples, channels, area, lanes, N);
    if (!own.any) return;
    Gradient normal;
    normal.set(own.channel, mean, deviation, scale, shift, scale_gradient, shift_gradient, (float)count);
    for (u32 i = own.first; i < own.end; i += flight * own.step) {
        Pack<T, N> value[flight], gradient[flight], sum[flight];
#pragma unroll
        for (u32 k = 0; k < flight; k++) {
            if (i + k * own.step < own.end) {
                u64 at = own.at(i + k * own.step);
                value[k].load(x + at);
                gradient[k].load(dy + at);
                if (add) sum[k].load(dx + at);
            }
        }
#pragma unroll
        for (u32 k = 0; k < flight; k++) {
            if (i + k * own.step < own.end) {
#pragma unroll
                for (u32 j = 0; j < N; j++) {
                    float result = normal.of(value[k].get(j), gradient[k].get(j), relu);
                    sum[k].set(j, add ? sum[k].get(j) + result : result);
                }
                sum[k].store(dx + own.at(i + k * own.step));
            }
        }
    }
}

// The same with the channels last.
template <typename T, int N>
static __device__ void norm_gradient_last(const typename T::type *x, const typename T::type *dy, typename T::type *dx,
                                          const float *mean, const float *deviation, const float *scale, const float *shift,
                                          const float *scale_gradient, const float *shift_gradient, u64 count, u64 rows,
                                          u32 channels, u32 lanes, u32 add, u32 relu) {
    Rows own(channels, lanes, N);
    if (!own.any) return;
    Gradient normal[N];
#pragma unroll
    for (u32 j = 0; j < N; j++)
        normal[j].set(own.channel + j, mean, deviation, scale, shift, scale_gradient, shift_gradient, (float)count);
    for (u64 row = own.first; row < rows; row += 2 * own.step) {
        Pack<T, N> value[2], gradient[2], sum[2];
#pragma unroll
        for (u32 k = 0; k < 2; k++) {
            u64 at = (row + k * own.step) * channels + own.channel;
            if (row + k * own.step < rows) {
                value[k].load(x + at);
                gradient[k].load(dy + at);
                if (add) sum[k].load(dx + at);
            }
        }
#pragma unroll
        for (u32 k = 0; k < 2; k++) {
            if (row + k * own.step < rows) {
#pragma unroll
                for (u32 j = 0; j < N; j++) {
                    float result = normal[j].of(value[k].get(j), gradient[k].get(j), relu);
                    sum[k].set(j, add ? sum[k].get(j) + result : result);
                }
                sum[k].store(dx + (row + k * own.step) * channels + own.channel);
            }
        }
    }
}

// Sums of each channel: partial (gridDim.y, channels).
template <typename T, int N>
static __device__ void bias_sums_last(const typename T::type *dy, float *partial, u64 rows, u32 channels, u32 lanes) {
    Rows own(channels, lanes, N);
    float sum[1][N] = {};
    if (own.any) {
#pragma unroll 4
        for (u64 row = own.first; row < rows; row += own.step) {
            Pack<T, N> pack;
            pack.load(dy + row * channels + own.channel);
#pragma unroll
            for (u32 j = 0; j < N; j++) sum[0][j] += pack.get(j);
        }
    }
    store_partial<1, N>(sum, partial, channels, lanes);
}

// db = the sum of each channel's parts, added to db or over it.
#ifdef CHANNELS_LAST
extern "C" __global__ void bias_gradient_last(const float *partial, float *db, u32 channels, u32 parts, u32 add) {
    double total[1];
    total_parts<1>(partial, channels, parts, total);
    u32 channel = blockIdx.x * 8 + threadIdx.x;
    if (threadIdx.x >= 8 || channel >= channels) return;
    db[channel] = (add ? db[channel] : 0.0f) + (float)total[0];
}
#endif

// y = y + the bias of each channel.
template <typename T, int N>
static __device__ void add_bias_last(const typename T::type *bias, typename T::type *y, u64 rows, u32 channels, u32 lanes) {
    Rows own(channels, lanes, N);
    if (!own.any) return;
    float added[N];
#pragma unroll
    for (u32 j = 0; j < N; j++) added[j] = T::load(bias, own.channel + j);
    for (u64 row = own.first; row < rows; row += 4 * own.step) {
        Pack<T, N> pack[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            if (row + k * own.step < rows) pack[k].load(y + (row + k * own.step) * channels + own.channel);
        }
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            if (row + k * own.step < rows) {
#pragma unroll
                for (u32 j = 0; j < N; j++) pack[k].set(j, pack[k].get(j) + added[j]);
                pack[k].store(y + (row + k * own.step) * channels + own.channel);
            }
        }
    }
}

// Some channels of every row of y = the same channels of x, or the sum of both: `x_row` and `y_row` elements from one row to the
// next.
template <typename T, int N>
static __device__ void copy_channels_last(const typename T::type *x, typename T::type *y, u64 rows, u32 channels, u64 x_row,
                                          u64 y_row, u32 lanes, u32 add) {
    Rows own(channels, lanes, N);
    if (!own.any) return;
    for (u64 row = own.first; row < rows; row += 4 * own.step) {
        Pack<T, N> pack[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            if (row + k * own.step < rows) pack[k].load(x + (row + k * own.step) * x_row + own.channel);
        }
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            if (row + k * own.step < rows) {
                typename T::type *to = y + (row + k * own.step) * y_row + own.channel;
                if (add) {
                    Pack<T, N> sum;
                    sum.load(to);
#pragma unroll
                    for (u32 j = 0; j < N; j++) pack[k].set(j, sum.get(j) + pack[k].get(j));
                }
                pack[k].store(to);
            }
        }
    }
}

// The largest element of each window, or the mean of the elements that are not padding. blockIdx.y counts samples.
template <typename T, int N>
static __device__ void pooling_last(const typename T::type *x, typename T::type *y, u64 samples, u32 channels, Axis d, Axis h,
                                    Axis w, u32 mean) {
    __shared__ Divisor by[3];
    u32 packs = channels / N, items = d.output * h.output * w.output * packs;
    if (threadIdx.x == 0) by[0].set(packs);
    if (threadIdx.x == 32) by[1].set(w.output);
    if (threadIdx.x == 64) by[2].set(h.output);
    __syncthreads();
    for (u64 sample = blockIdx.y; sample < samples; sample += gridDim.y) {
        const typename T::type *own = x + sample * d.input * h.input * w.input * channels;
        for (u32 t = thread(); t < items; t += threads()) {
            u32 place = by[0].divide(t), row = by[1].divide(place), o = by[2].divide(row), channel = (t - place * packs) * N;
            u32 p = row - o * h.output, q = place - row * w.output;
            u32 i_begin = d.begin(o), i_end = d.end(o), j_begin = h.begin(p), j_end = h.end(p), k_begin = w.begin(q), k_end = w.end(q);
            float value[N];
#pragma unroll
            for (u32 n = 0; n < N; n++) value[n] = mean ? 0.0f : -__int_as_float(0x7f800000);
            for (u32 i = i_begin; i < i_end; i++) {
                for (u32 j = j_begin; j < j_end; j++) {
                    const typename T::type *line = own + (u64)(i * h.input + j) * w.input * channels + channel;
#pragma unroll 1
                    for (u32 k = k_begin; k < k_end; k++) {
                        Pack<T, N> pack;
                        pack.load(line + (u64)k * channels);
#pragma unroll
                        for (u32 n = 0; n < N; n++) {
                            float one = pack.get(n);
                            if (mean)
                                value[n] += one;
                            else if (one > value[n] || one != one)
                                value[n] = one;
                        }
                    }
                }
            }
            float count = mean ? (float)((i_end - i_begin) * (j_end - j_begin) * (k_end - k_begin)) : 1.0f;
            Pack<T, N> pack;
#pragma unroll
            for (u32 n = 0; n < N; n++) pack.set(n, value[n] / count);
            pack.store(y + (sample * items + t) * N);
        }
    }
}

// The windows that hold an element: from the first to before the end.
static __device__ u32 first_window(const Axis &axis, u32 at) {
    return at + axis.pad < axis.filter ? 0 : (at + axis.pad - axis.filter) / axis.stride + 1;
}
static __device__ u32 end_window(const Axis &axis, u32 at) { return min((at + axis.pad) / axis.stride + 1, axis.output); }

// dx = each element's share of the means, added to dx or over it. blockIdx.y counts samples.
template <typename T, int N>
static __device__ void average_pooling_gradient_last(const typename T::type *dy, typename T::type *dx, u64 samples, u32 channels,
                                                     Axis d, Axis h, Axis w, u32 add) {
    __shared__ Divisor by[3];
    u32 packs = channels / N, items = d.input * h.input * w.input * packs;
    if (threadIdx.x == 0) by[0].set(packs);
    if (threadIdx.x == 32) by[1].set(w.input);
    if (threadIdx.x == 64) by[2].set(h.input);
    __syncthreads();
    for (u64 sample = blockIdx.y; sample < samples; sample += gridDim.y) {
        const typename T::type *own = dy + sample * d.output * h.output * w.output * channels;
        for (u32 t = thread(); t < items; t += threads()) {
            u32 place = by[0].divide(t), row = by[1].divide(place), i = by[2].divide(row), channel = (t - place * packs) * N;
            u32 j = row - i * h.input, k = place - row * w.input;
            float sum[N] = {};
            for (u32 o = first_window(d, i); o < end_window(d, i); o++) {
                for (u32 p = first_window(h, j); p < end_window(h, j); p++) {
#pragma unroll 1
                    for (u32 q = first_window(w, k); q < end_window(w, k); q++) {
                        float count = (d.end(o) - d.begin(o)) * (h.end(p) - h.begin(p)) * (w.end(q) - w.begin(q));
                        Pack<T, N> pack;
                        pack.load(own + ((u64)(o * h.output + p) * w.output + q) * channels + channel);
#pragma unroll
                        for (u32 n = 0; n < N; n++) sum[n] += pack.get(n) / count;
                    }
                }
            }
            typename T::type *to = dx + (sample * items + t) * N;
            Pack<T, N> pack;
            if (add) pack.load(to);
#pragma unroll
            for (u32 n = 0; n < N; n++) pack.set(n, add ? pack.get(n) + sum[n] : sum[n]);
            pack.store(to);
        }
    }
}

// dx = the sum of dy over the windows of which x is the first largest element, in the windows' order, added to dx or over it.
// Like the kernel above, a block finds the places of the largest elements in their windows, of `per` packs of channels at once,
// at most 8192 places. blockIdx.x counts tiles, and the packs of each; blockIdx.y counts samples.
template <typename T, int N>
static __device__ void max_pooling_gradient_last(const typename T::type *x, const typename T::type *dy, typename T::type *dx,
                                                 u64 samples, u32 channels, Axis d, Axis h, Axis w, u32 per, u32 add) {
    __shared__ u16 places[8192];
    __shared__ Tile tiles[3];
    __shared__ Divisor by_per;
    u32 packs = channels / N, shares = (packs + per - 1) / per;
    u32 lines = (h.input + h.tile - 1) / h.tile, columns = (w.input + w.tile - 1) / w.tile, tile = blockIdx.x / shares;
    if (threadIdx.x == 0) tiles[0].set(d, tile / columns / lines);
    if (threadIdx.x == 32) tiles[1].set(h, tile / columns % lines);
    if (threadIdx.x == 64) tiles[2].set(w, tile % columns);
    if (threadIdx.x == 96) by_per.set(per);
    __syncthreads();
    const Tile &depth = tiles[0], &line = tiles[1], &column = tiles[2];
    u32 begin = blockIdx.x % shares * per, own_packs = min(per, packs - begin);
    u32 inputs = depth.inputs * line.inputs * column.inputs, windows = depth.windows * line.windows * column.windows;
    u64 sample_inputs = (u64)d.input * h.input * w.input * channels, sample_outputs = (u64)d.output * h.output * w.output * channels;
    for (u64 sample = blockIdx.y; sample < samples; sample += gridDim.y) {
        const typename T::type *from = x + sample * sample_inputs;
        for (u32 t = threadIdx.x; t < windows * per; t += blockDim.x) {
            u32 window = by_per.divide(t), pack = t - window * per, channel = (begin + pack) * N;
            if (pack >= own_packs) continue;
            u32 row = column.by_windows.divide(window), slice = line.by_windows.divide(row);
            u32 o = depth.first + slice, p = line.first + row - slice * line.windows;
            u32 q = column.first + window - row * column.windows;
            u32 i_end = d.end(o), j_begin = h.begin(p), j_end = h.end(p), k_begin = w.begin(q), k_end = w.end(q);
            float largest[N];
            u16 found[N];
#pragma unroll
            for (u32 n = 0; n < N; n++) found[n] = 0xffff, largest[n] = 0.0f;
#pragma unroll 1
            for (u32 i = d.begin(o); i < i_end; i++) {
                for (u32 j = j_begin; j < j_end; j++) {
                    u32 slot = ((i + d.pad - o * d.stride) * h.filter + j + h.pad - p * h.stride) * w.filter + w.pad - q * w.stride;
                    const typename T::type *values = from + (u64)(i * h.input + j) * w.input * channels + channel;
#pragma unroll 1
                    for (u32 k = k_begin; k < k_end; k++) {
                        Pack<T, N> value;
                        value.load(values + (u64)k * channels);
#pragma unroll
                        for (u32 n = 0; n < N; n++) {
                            float one = value.get(n);
                            if (found[n] == 0xffff || one > largest[n]) largest[n] = one, found[n] = slot + k;
                        }
                    }
                }
            }
#pragma unroll
            for (u32 n = 0; n < N; n++) places[(window * per + pack) * N + n] = found[n];
        }
        __syncthreads();
        const typename T::type *gradients = dy + sample * sample_outputs;
        for (u32 t = threadIdx.x; t < inputs * per; t += blockDim.x) {
            u32 input = by_per.divide(t), pack = t - input * per, channel = (begin + pack) * N;
            if (pack >= own_packs) continue;
            u32 row = column.by_inputs.divide(input), slice = line.by_inputs.divide(row);
            u32 i = depth.begin + slice, j = line.begin + row - slice * line.inputs, k = column.begin + input - row * column.inputs;
            typename T::type *to = dx + sample * sample_inputs + (u64)((i * h.input + j) * w.input + k) * channels + channel;
            Pack<T, N> result;
            float sum[N];
            if (add) result.load(to);
#pragma unroll
            for (u32 n = 0; n < N; n++) sum[n] = add ? result.get(n) : 0.0f;
            u32 o_end = depth.end_of(d, i), p_begin = line.first_of(h, j), p_end = line.end_of(h, j);
            u32 q_begin = column.first_of(w, k), q_end = column.end_of(w, k);
            for (u32 o = depth.first_of(d, i); o < o_end; o++) {
                for (u32 p = p_begin; p < p_end; p++) {
                    u32 first = ((o - depth.first) * line.windows + p - line.first) * column.windows;
                    u32 slot = ((i + d.pad - o * d.stride) * h.filter + j + h.pad - p * h.stride) * w.filter + k + w.pad;
#pragma unroll 1
                    for (u32 q = q_begin; q < q_end; q++) {
                        const u16 *found = places + ((first + q - column.first) * per + pack) * N;
                        Pack<T, N> gradient;
                        gradient.load(gradients + ((u64)(o * h.output + p) * w.output + q) * channels + channel);
#pragma unroll
                        for (u32 n = 0; n < N; n++) {
                            if (found[n] == slot - q * w.stride) sum[n] += gradient.get(n);
                        }
                    }
                }
            }
#pragma unroll
            for (u32 n = 0; n < N; n++) result.set(n, sum[n]);
            result.store(to);
        }
        __syncthreads();
    }
}

// The largest 1 + i of words that are not the pattern.
#ifdef PLAIN
extern "C" __global__ void last_touched(const u32 *words, u64 len, u32 pattern, u64 *last) {
    u64 found = 0;
    for (u64 i = thread(); i < len; i += threads()) {
        if (words[i] != pattern) found = i + 1;
    }
    if (found) atomicMax(last, found);
}
#endif

#define AXIS(a) u32 a##_input, u32 a##_output, u32 a##_filter, u32 a##_stride, u32 a##_pad, u32 a##_tile
#define AN_AXIS(a) Axis { a##_input, a##_output, a##_filter, a##_stride, a##_pad, a##_tile }

#define KERNELS(T, name)                                                                                                     \
    extern "C" __global__ void loss_gradient_##name(const T::type *p, const u32 *labels, T::type *dx, u64 len, u32 classes,  \
                                                    float batch, u32 add, const Iteration *now) {                            \
        loss_gradient<T>(p, labels, dx, len, classes, batch, add, now);                                                      \
    }                                                                                                                        \
    extern "C" __global__ void dropout_##name(const T::type *x, T::type *y, u8 *mask, u64 len, u32 channels, u32 area,       \
                                              u64 first, u64 layer, u64 threshold, float scale, const Iteration *now) {      \
        dropout<T>(x, y, mask, len, channels, area, first, layer, threshold, scale, now);                                    \
    }                                                                                                                        \
    extern "C" __global__ void masked_##name(const T::type *x, T::type *y, const u8 *mask, u64 len, float scale, u32 add) {  \
        masked<T>(x, y, mask, len, scale, add);                                                                              \
    }                                                                                                                        \
    extern "C" __global__ void channel_sums_##name(const T::type *dy, float *partial, u32 samples, u32 channels, u32 area) { \
        channel_sums<T>(dy, partial, samples, channels, area);                                                               \
    }                                                                                                                        \
    extern "C" __global__ void update_##name(float *w, const float *dw, float *change, T::type *stored, u64 len,             \
                                             const Iteration *now) {                                                         \
        update<T>(w, dw, change, stored, len, now);                                                                          \
    }                                                                                                                        \
    extern "C" __global__ void adamw_##name(float *w, const float *dw, float *first, float *second, T::type *stored,         \
                                            u64 len, const Iteration *now) {                                                 \
        adamw<T>(w, dw, first, second, stored, len, now);                                                                    \
    }                                                                                                                        \
    extern "C" __global__ void widen_##name(const T::type *x, float *sum, u64 len, u32 add) { widen<T>(x, sum, len, add); }  \
    extern "C" __global__ void __launch_bounds__(256, 4) relu_##name(const T::type *x, T::type *y, u64 len) {                \
        relu<T>(x, y, len);                                                                                                  \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 4) relu_gradient_##name(const T::type *y, const T::type *dy,           \
                                                                              T::type *dx, u64 len, u32 add) {               \
        relu_gradient<T>(y, dy, dx, len, add);                                                                               \
    }                                                                                                                        \
    extern "C" __global__ void copy_rows_##name(const T::type *x, T::type *y, u64 rows, u64 width, u64 x_row, u64 y_row,     \
                                                u32 add, u32 relu) {                                                         \
        copy_rows<T>(x, y, rows, width, x_row, y_row, add, relu);                                                            \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 8)                                                                     \
        max_pooling_gradient_##name(const T::type *x, const T::type *y, const T::type *dy, T::type *dx, u64 planes, AXIS(d), \
                                    AXIS(h), AXIS(w), u32 per, u32 add) {                                                    \
        max_pooling_gradient<T>(x, y, dy, dx, planes, AN_AXIS(d), AN_AXIS(h), AN_AXIS(w), per, add);                         \
    }

#define KERNELS_NORM(T, name)                                                                                                \
    extern "C" __global__ void __launch_bounds__(256, 4) norm_sums_##name(const T::type *x, float *partial, u32 samples,     \
            u32 channels, u32 area, u32 lanes, u32 wide) {                                                                   \
        if (wide)                                                                                                            \
            norm_sums<T, 16 / sizeof(T::type)>(x, partial, samples, channels, area, lanes);                                  \
        else                                                                                                                 \
            norm_sums<T, 1>(x, partial, samples, channels, area, lanes);                                                     \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256) norm_statistics_##name(const T::type *x, const float *partial,         \
            float *mean, float *deviation, float *running_mean, float *running_variance, u64 count, u64 before, u64          \
            plane, u32 channels, u32 parts, float share, float epsilon) {                                                    \
        norm_statistics<T>(x, partial, mean, deviation, running_mean, running_variance, count, before, plane, channels,      \
            parts, share, epsilon);                                                                                          \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 4) norm_apply_##name(const T::type *x, T::type *y, const float *mean,  \
            const float *second, const float *scale, const float *shift, u32 samples, u32 channels, u32 area, u32 lanes,     \
            float epsilon, u32 relu, u32 wide) {                                                                             \
        if (wide)                                                                                                            \
            norm_apply<T, 16 / sizeof(T::type)>(x, y, mean, second, scale, shift, samples, channels, area, lanes,            \
                epsilon, relu);                                                                                              \
        else                                                                                                                 \
            norm_apply<T, 1>(x, y, mean, second, scale, shift, samples, channels, area, lanes, epsilon, relu);               \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 4) norm_gradient_sums_##name(const T::type *x, const T::type *dy,      \
            const float *mean, const float *deviation, const float *scale, const float *shift, float *partial, u32           \
            samples, u32 channels, u32 area, u32 lanes, u32 relu, u32 wide) {                                                \
        if (wide)                                                                                                            \
            norm_gradient_sums<T, 16 / sizeof(T::type)>(x, dy, mean, deviation, scale, shift, partial, samples, channels,    \
                area, lanes, relu);                                                                                          \
        else                                                                                                                 \
            norm_gradient_sums<T, 1>(x, dy, mean, deviation, scale, shift, partial, samples, channels, area, lanes, relu);   \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 4) norm_gradient_##name(const T::type *x, const T::type *dy,           \
            T::type *dx, const float *mean, const float *deviation, const float *scale, const float *shift,                  \
            const float *scale_gradient, const float *shift_gradient, u64 count, u32 samples, u32 channels, u32 area,        \
            u32 lanes, u32 add, u32 relu, u32 wide) {                                                                        \
        if (wide)                                                                                                            \
            norm_gradient<T, 16 / sizeof(T::type)>(x, dy, dx, mean, deviation, scale, shift, scale_gradient,                 \
                shift_gradient, count, samples, channels, area, lanes, add, relu);                                           \
        else                                                                                                                 \
            norm_gradient<T, 1>(x, dy, dx, mean, deviation, scale, shift, scale_gradient, shift_gradient, count,             \
                samples, channels, area, lanes, add, relu);                                                                  \
    }

#define KERNELS_LAST(T, name)                                                                                                \
    extern "C" __global__ void __launch_bounds__(256, 4) norm_sums_last_##name(const T::type *x, float *partial, u64         \
            rows, u32 channels, u32 lanes, u32 wide) {                                                                       \
        if (wide)                                                                                                            \
            norm_sums_last<T, 16 / sizeof(T::type)>(x, partial, rows, channels, lanes);                                      \
        else                                                                                                                 \
            norm_sums_last<T, 1>(x, partial, rows, channels, lanes);                                                         \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 4) norm_apply_last_##name(const T::type *x, T::type *y, const          \
            float *mean, const float *second, const float *scale, const float *shift, u64 rows, u32 channels, u32            \
            lanes, float epsilon, u32 relu, u32 wide) {                                                                      \
        if (wide)                                                                                                            \
            norm_apply_last<T, 16 / sizeof(T::type)>(x, y, mean, second, scale, shift, rows, channels, lanes,                \
                epsilon, relu);                                                                                              \
        else                                                                                                                 \
            norm_apply_last<T, 1>(x, y, mean, second, scale, shift, rows, channels, lanes, epsilon, relu);                   \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 4) norm_gradient_sums_last_##name(const T::type *x, const              \
            T::type *dy, const float *mean, const float *deviation, const float *scale, const float *shift, float            \
            *partial, u64 rows, u32 channels, u32 lanes, u32 relu, u32 wide) {                                               \
        if (wide)                                                                                                            \
            norm_gradient_sums_last<T, 16 / sizeof(T::type)>(x, dy, mean, deviation, scale, shift, partial, rows,            \
                channels, lanes, relu);                                                                                      \
        else                                                                                                                 \
            norm_gradient_sums_last<T, 1>(x, dy, mean, deviation, scale, shift, partial, rows, channels, lanes, relu);       \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 3) norm_gradient_last_##name(const T::type *x, const T::type           \
            *dy, T::type *dx, const float *mean, const float *deviation, const float *scale, const float *shift, const       \
            float *scale_gradient, const float *shift_gradient, u64 count, u64 rows, u32 channels, u32 lanes, u32 add,       \
            u32 relu, u32 wide) {                                                                                            \
        if (wide)                                                                                                            \
            norm_gradient_last<T, 16 / sizeof(T::type)>(x, dy, dx, mean, deviation, scale, shift, scale_gradient,            \
                shift_gradient, count, rows, channels, lanes, add, relu);                                                    \
        else                                                                                                                 \
            norm_gradient_last<T, 1>(x, dy, dx, mean, deviation, scale, shift, scale_gradient, shift_gradient, count,        \
                rows, channels, lanes, add, relu);                                                                           \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 4) bias_sums_last_##name(const T::type *dy, float *partial,            \
            u64 rows, u32 channels, u32 lanes, u32 wide) {                                                                   \
        if (wide)                                                                                                            \
            bias_sums_last<T, 16 / sizeof(T::type)>(dy, partial, rows, channels, lanes);                                     \
        else                                                                                                                 \
            bias_sums_last<T, 1>(dy, partial, rows, channels, lanes);                                                        \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 4) add_bias_last_##name(const T::type *bias, T::type *y, u64           \
            rows, u32 channels, u32 lanes, u32 wide) {                                                                       \
        if (wide)                                                                                                            \
            add_bias_last<T, 16 / sizeof(T::type)>(bias, y, rows, channels, lanes);                                          \
        else                                                                                                                 \
            add_bias_last<T, 1>(bias, y, rows, channels, lanes);                                                             \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 4) copy_channels_last_##name(const T::type *x, T::type *y, u64         \
            rows, u32 channels, u64 x_row, u64 y_row, u32 lanes, u32 add, u32 wide) {                                        \
        if (wide)                                                                                                            \
            copy_channels_last<T, 16 / sizeof(T::type)>(x, y, rows, channels, x_row, y_row, lanes, add);                     \
        else                                                                                                                 \
            copy_channels_last<T, 1>(x, y, rows, channels, x_row, y_row, lanes, add);                                        \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 4) pooling_last_##name(const T::type *x, T::type *y, u64               \
            samples, u32 channels, AXIS(d), AXIS(h), AXIS(w), u32 mean, u32 wide) {                                          \
        if (wide)                                                                                                            \
            pooling_last<T, 16 / sizeof(T::type)>(x, y, samples, channels, AN_AXIS(d), AN_AXIS(h), AN_AXIS(w), mean);        \
        else                                                                                                                 \
            pooling_last<T, 1>(x, y, samples, channels, AN_AXIS(d), AN_AXIS(h), AN_AXIS(w), mean);                           \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 4) average_pooling_gradient_last_##name(const T::type *dy,             \
            T::type *dx, u64 samples, u32 channels, AXIS(d), AXIS(h), AXIS(w), u32 add, u32 wide) {                          \
        if (wide)                                                                                                            \
            average_pooling_gradient_last<T, 16 / sizeof(T::type)>(dy, dx, samples, channels, AN_AXIS(d),                    \
                AN_AXIS(h), AN_AXIS(w), add);                                                                                \
        else                                                                                                                 \
            average_pooling_gradient_last<T, 1>(dy, dx, samples, channels, AN_AXIS(d), AN_AXIS(h), AN_AXIS(w), add);         \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 4) max_pooling_gradient_last_##name(const T::type *x, const            \
            T::type *dy, T::type *dx, u64 samples, u32 channels, AXIS(d), AXIS(h), AXIS(w), u32 per, u32 add, u32            \
            wide) {                                                                                                          \
        if (wide)                                                                                                            \
            max_pooling_gradient_last<T, 16 / sizeof(T::type)>(x, dy, dx, samples, channels, AN_AXIS(d), AN_AXIS(h),         \
                AN_AXIS(w), per, add);                                                                                       \
        else                                                                                                                 \
            max_pooling_gradient_last<T, 1>(x, dy, dx, samples, channels, AN_AXIS(d), AN_AXIS(h), AN_AXIS(w), per,           \
                add);                                                                                                        \
    }

#ifdef PLAIN
KERNELS(F32, f32)
KERNELS(F16, f16)
KERNELS(Bf16, bf16)
#endif
#ifdef NORMALIZATION
KERNELS_NORM(F32, f32)
KERNELS_NORM(F16, f16)
KERNELS_NORM(Bf16, bf16)
#endif
#ifdef CHANNELS_LAST
KERNELS_LAST(F16, f16)
KERNELS_LAST(Bf16, bf16)
#endif
