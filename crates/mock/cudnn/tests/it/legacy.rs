//! The legacy interface: every algorithm computes or refuses, and the rules of workspaces, streams and failures.

use crate::client::case::{Case, OPERATIONS, Operation, cases};
use crate::client::{Client, F16, F32, client, round};

const NOT_SUPPORTED: i32 = 3000;
const BAD_PARAM: i32 = 2000;
const FMA_MATH: i32 = 3;

/// Descriptors and device data of one case.
struct Set<'a> {
    client: &'a Client,
    case: Case,
    kind: i32,
    x: usize,
    w: usize,
    y: usize,
    convolution: usize,
    data: [u64; 3],
}

impl<'a> Set<'a> {
    fn new(client: &'a Client, case: &Case, kind: i32, compute: i32) -> Set<'a> {
        let narrow = |v: Vec<i64>| -> Vec<i32> { v.into_iter().map(|d| d as i32).collect() };
        let dims = case.dims();
        let tensor = |i: usize| {
            let strides = case.strides(&dims[i]);
            client.tensor(kind, &narrow(case.described(&dims[i])), &narrow(case.described(&strides)))
        };
        let (mut w, mut convolution, filter) = (0, 0, narrow(case.described(&dims[1])));
        client.dnn.cudnnCreateFilterDescriptor(&mut w);
        let format = i32::from(case.channels_last);
        let count = filter.len() as i32;
        assert_eq!(client.dnn.cudnnSetFilterNdDescriptor(w, kind, format, count, filter.as_ptr()), 0);
        client.dnn.cudnnCreateConvolutionDescriptor(&mut convolution);
        let [pad, stride, dilation] = [case.pre, case.stride, case.dilation].map(|v| narrow(case.spatially(&v)));
        let (pad, stride, dilation) = (pad.as_ptr(), stride.as_ptr(), dilation.as_ptr());
        let spatial = case.spatial as i32;
        let status =
            client.dnn.cudnnSetConvolutionNdDescriptor(convolution, spatial, pad, stride, dilation, 1, compute);
        assert_eq!(status, 0);
        client.dnn.cudnnSetConvolutionGroupCount(convolution, case.groups as i32);
        client.dnn.cudnnSetConvolutionMathType(convolution, FMA_MATH);
        let data = [0, 1, 2].map(|i| client.upload(kind, &case.data(i)));
        Set { client, case: case.clone(), kind, x: tensor(0), w, y: tensor(2), convolution, data }
    }

    fn workspace(&self, operation: Operation, algorithm: i32) -> Result<usize, i32> {
        let (d, h, c, mut bytes) = (self.client.dnn, self.client.handle, self.convolution, 0);
        let status = match operation {
            Operation::Forward => {
                d.cudnnGetConvolutionForwardWorkspaceSize(h, self.x, self.w, c, self.y, algorithm, &mut bytes)
            }
            Operation::BackwardData => {
                d.cudnnGetConvolutionBackwardDataWorkspaceSize(h, self.w, self.y, c, self.x, algorithm, &mut bytes)
            }
            Operation::BackwardFilter => {
                d.cudnnGetConvolutionBackwardFilterWorkspaceSize(h, self.x, self.y, c, self.w, algorithm, &mut bytes)
            }
        };
        if status == 0 { Ok(bytes) } else { Err(status) }
    }

    fn run(&self, operation: Operation, algorithm: i32, factors: [f32; 2], workspace: (u64, usize)) -> i32 {
        let (d, h, c, [x, w, y]) = (self.client.dnn, self.client.handle, self.convolution, self.data);
        let ([alpha, beta], (space, bytes)) = ([&factors[0], &factors[1]], workspace);
        match operation {
            Operation::Forward => {
                d.cudnnConvolutionForward(h, alpha, self.x, x, self.w, w, c, algorithm, space, bytes, beta, self.y, y)
            }
            Operation::BackwardData => d.cudnnConvolutionBackwardData(
                h, alpha, self.w, w, self.y, y, c, algorithm, space, bytes, beta, self.x, x,
            ),
            Operation::BackwardFilter => d.cudnnConvolutionBackwardFilter(
                h, alpha, self.x, x, self.y, y, c, algorithm, space, bytes, beta, self.w, w,
            ),
        }
    }

    fn output(&self, operation: Operation) -> Vec<f32> {
        let which = Case::output(operation);
        self.client.download(self.kind, self.data[which], self.case.data(which).len())
    }
}

impl Drop for Set<'_> {
    fn drop(&mut self) {
        self.client.dnn.cudnnDestroyTensorDescriptor(self.x);
        self.client.dnn.cudnnDestroyTensorDescriptor(self.y);
        self.client.dnn.cudnnDestroyFilterDescriptor(self.w);
        self.client.dnn.cudnnDestroyConvolutionDescriptor(self.convolution);
        for data in self.data {
            self.client.cuda.cuMemFree_v2(data);
        }
    }
}

/// Algorithms whose transforms are not exact.
fn is_transform(operation: Operation, algorithm: i32) -> bool {
    match operation {
        Operation::Forward => algorithm >= 4,
        Operation::BackwardData => algorithm >= 2,
        Operation::BackwardFilter => algorithm == 2 || algorithm >= 5,
    }
}

#[test]
fn every_algorithm_computes_the_definition_or_refuses() {
    let client = client();
    let mut computed = 0;
    for (case, operation) in cases().iter().flat_map(|c| OPERATIONS.map(|o| (c, o))) {
        let (sums, magnitudes) = case.expected(operation);
        for algorithm in 0..[8, 6, 7][operation as usize] {
            let set = Set::new(&client, case, F32, F32);
            let bytes = match set.workspace(operation, algorithm) {
                Ok(bytes) => bytes,
                Err(status) => {
                    assert_eq!(status, NOT_SUPPORTED, "{case:?} {operation:?} {algorithm}");
                    assert!(algorithm > 1, "the first two compute everything");
                    assert_eq!(set.run(operation, algorithm, [1.0, 0.0], (0, 0)), NOT_SUPPORTED);
                    continue;
                }
            };
            computed += 1;
            let workspace = (if bytes > 0 { client.cuda.allocate(bytes) } else { 0 }, bytes);
            let which = Case::output(operation);
            client.cuda.cuMemsetD8_v2(set.data[which], 0xFF, case.data(which).len() * 4);
            assert_eq!(set.run(operation, algorithm, [2.0, 0.0], workspace), 0, "NaN before does not matter");
            assert_eq!(set.run(operation, algorithm, [-1.0, 3.0], workspace), 0);
            for ((got, sum), magnitude) in set.output(operation).iter().zip(&sums).zip(&magnitudes) {
                // -1 + 3 * 2; the transforms add at most 5e-7 of the magnitudes in each of the 7 shares, f32 rounds once.
                let slack = if is_transform(operation, algorithm) { 4e-6 * magnitude } else { 0.0 };
                let error = (f64::from(*got) - 5.0 * sum).abs();
                assert!(error <= slack, "{case:?} {operation:?} {algorithm}: {got} for {}", 5.0 * sum);
            }
            client.cuda.cuMemFree_v2(workspace.0);
        }
    }
    assert!(computed > 60, "{computed}");
    assert_eq!((client.cuda.count("allocations"), client.count("tensor-descriptors")), (0, 0));
}

#[test]
fn half_sums_are_rounded_after_every_addition() {
    let client = client();
    let case = Case { input: [1, 1, 1], filter: [1, 1, 1], pre: [0; 3], post: [0; 3], ..Case::dense(1, 4, 1) };
    for (compute, order, expected) in [(F32, 0, 2052.0), (F16, 0, 2048.0), (F16, 1, 2052.0)] {
        let set = Set::new(&client, &case, F16, compute);
        // 2048 + 1 rounds to 2048 in f16, but 1 + 1 + 1 + 2048 = 2051 rounds to 2052.
        let [x, w] = [client.upload(F16, &[2048.0, 1.0, 1.0, 1.0]), client.upload(F16, &[1.0; 4])];
        client.cuda.cuMemcpyDtoD_v2(set.data[0], x, 8);
        client.cuda.cuMemcpyDtoD_v2(set.data[1], w, 8);
        let bytes = set.workspace(Operation::Forward, order).unwrap();
        let space = client.cuda.allocate(bytes.max(1));
        assert_eq!(set.run(Operation::Forward, order, [1.0, 0.0], (space, bytes)), 0);
        assert_eq!(set.output(Operation::Forward), [expected], "compute {compute}, algorithm {order}");
    }
}

#[test]
fn tensor_cores_round_their_inputs() {
    let client = client();
    let case = Case { input: [1, 1, 1], filter: [1, 1, 1], pre: [0; 3], post: [0; 3], ..Case::dense(1, 1, 1) };
    let value = 1.0 + 1.0 / 4096.0;
    for (math, expected) in [(FMA_MATH, value), (0, 1.0)] {
        let set = Set::new(&client, &case, F32, F32);
        client.dnn.cudnnSetConvolutionMathType(set.convolution, math);
        let data = client.upload(F32, &[value, 1.0]);
        client.cuda.cuMemcpyDtoD_v2(set.data[0], data, 4);
        client.cuda.cuMemcpyDtoD_v2(set.data[1], data + 4, 4);
        let bytes = set.workspace(Operation::Forward, 1).unwrap();
        assert_eq!(set.run(Operation::Forward, 1, [1.0, 0.0], (client.cuda.allocate(bytes), bytes)), 0);
        assert_eq!(set.output(Operation::Forward), [expected]);
    }
    assert_eq!(round(F16, value), 1.0, "halves are coarser still");
}

#[test]
fn workspaces_grow_stay_and_jump() {
    let client = client();
    let sizes = |algorithm| -> Vec<usize> {
        (1..=16)
            .map(|n| {
                Set::new(&client, &Case::dense(n, 2, 2), F32, F32).workspace(Operation::Forward, algorithm).unwrap()
            })
            .collect()
    };
    assert!(sizes(0).iter().all(|&s| s == 0));
    let constant = sizes(1);
    assert!(constant[0] > 0 && constant.iter().all(|&s| s == constant[0]));
    assert!(sizes(4).is_sorted_by(|a, b| a < b));
    let tiled = sizes(5);
    assert!(tiled[7] < tiled[6] && tiled[15] > tiled[7], "less where 8 divides the batch: {tiled:?}");
}

#[test]
fn the_fused_call_computes_its_definition_or_refuses() {
    const RELU: i32 = 1;
    const IDENTITY: i32 = 5;
    let client = client();
    let case = Case::dense(3, 4, 2);
    let (sums, _) = case.expected(Operation::Forward);
    let (dims, inner) = (case.dims()[2], (case.dims()[2][3] * case.dims()[2][4]) as usize);
    let channels = dims[1] as usize;
    let bias: Vec<f32> = (0..channels).map(|channel| channel as f32 - 1.0).collect();
    for (mode, algorithm, is_in_place) in [(RELU, 2, false), (RELU, 0, true), (IDENTITY, 1, false), (IDENTITY, 1, true)]
    {
        let set = Set::new(&client, &case, F32, F32);
        let described = client.tensor(F32, &[1, channels as i32, 1, 1], &[channels as i32, 1, 1, 1]);
        let (at_bias, mut activation) = (client.upload(F32, &bias), 0);
        assert_eq!(client.dnn.cudnnCreateActivationDescriptor(&mut activation), 0);
        assert_eq!(client.dnn.cudnnSetActivationDescriptor(activation, mode, 0, 0.0), 0);
        let z_data = case.data(2);
        let z = if is_in_place { set.data[2] } else { client.upload(F32, &z_data) };
        let bytes = set.workspace(Operation::Forward, algorithm).unwrap();
        let space = client.cuda.allocate(bytes.max(1));
        let run = |algorithm: i32, bytes: usize| {
            let [x, w, y] = set.data;
            client.dnn.cudnnConvolutionBiasActivationForward(
                client.handle,
                &2.0,
                set.x,
                x,
                set.w,
                w,
                set.convolution,
                algorithm,
                space,
                bytes,
                &3.0,
                set.y,
                z,
                described,
                at_bias,
                activation,
                set.y,
                y,
            )
        };
        if bytes > 0 {
            assert_eq!(run(algorithm, bytes - 1), BAD_PARAM, "too little workspace");
        }
        if mode == IDENTITY {
            assert_eq!(run(0, bytes), NOT_SUPPORTED, "only the precomputed algorithm goes without an activation");
        }
        assert_eq!(run(algorithm, bytes), 0);
        for (place, got) in set.output(Operation::Forward).into_iter().enumerate() {
            let sum = 2.0 * sums[place] as f32 + 3.0 * z_data[place] + bias[place / inner % channels];
            assert_eq!(got, if mode == RELU { sum.max(0.0) } else { sum }, "{mode} {algorithm} {is_in_place} {place}");
        }
        assert_eq!(client.dnn.cudnnDestroyActivationDescriptor(activation), 0);
        client.dnn.cudnnDestroyTensorDescriptor(described);
    }
}

#[test]
fn workspace_too_small_is_refused_or_caught() {
    let client = client();
    let set = Set::new(&client, &Case::dense(2, 2, 2), F32, F32);
    let bytes = set.workspace(Operation::Forward, 2).unwrap();
    let small = client.cuda.allocate(bytes - 256);
    assert_eq!(set.run(Operation::Forward, 2, [1.0, 0.0], (small, bytes - 256)), BAD_PARAM);
    client.dnn.tightfitMockCudnnLieWorkspace(-256);
    assert_eq!(set.workspace(Operation::Forward, 2), Ok(bytes - 256));
    assert_eq!(set.run(Operation::Forward, 2, [1.0, 0.0], (small, bytes - 256)), 0, "told so little, so given");
    assert_eq!(client.cuda.cuStreamSynchronize(client.stream), 700);
}

#[test]
fn two_streams_in_one_workspace_are_caught() {
    let client = client();
    let set = Set::new(&client, &Case::dense(8, 8, 8), F32, F32);
    let (bytes, second) = (set.workspace(Operation::Forward, 2).unwrap(), client.cuda.stream());
    let space = (client.cuda.allocate(bytes), bytes);
    for _ in 0..200 {
        set.run(Operation::Forward, 2, [1.0, 0.0], space);
        client.dnn.cudnnSetStream(client.handle, second);
        set.run(Operation::Forward, 2, [1.0, 0.0], space);
        client.dnn.cudnnSetStream(client.handle, client.stream);
    }
    assert_eq!(client.cuda.cuCtxSynchronize(), 719);
}

#[test]
fn a_captured_convolution_runs_at_each_launch() {
    let client = client();
    let (case, cuda) = (Case::dense(1, 1, 1), &client.cuda);
    let set = Set::new(&client, &case, F32, F32);
    cuda.cuStreamBeginCapture_v2(client.stream, 0);
    assert_eq!(set.run(Operation::Forward, 0, [1.0, 1.0], (0, 0)), 0);
    let (mut graph, mut executable) = (0, 0);
    cuda.cuStreamEndCapture(client.stream, &mut graph);
    cuda.cuGraphInstantiateWithFlags(&mut executable, graph, 0);
    cuda.cuMemsetD8_v2(set.data[2], 0, case.data(2).len() * 4);
    for launch in 1..=3 {
        cuda.cuGraphLaunch(executable, client.stream);
        let expected: Vec<f32> =
            case.expected(Operation::Forward).0.iter().map(|&s| s as f32 * launch as f32).collect();
        assert_eq!(set.output(Operation::Forward), expected);
    }
}

#[test]
fn one_wrong_element_on_request() {
    let client = client();
    let case = Case::dense(1, 1, 1);
    let set = Set::new(&client, &case, F32, F32);
    client.dnn.tightfitMockCudnnSpoil(2);
    let right: Vec<f32> = case.expected(Operation::Forward).0.iter().map(|&s| s as f32).collect();
    for spoiled in [false, true, false] {
        set.run(Operation::Forward, 0, [1.0, 0.0], (0, 0));
        let got = set.output(Operation::Forward);
        assert_eq!((got[0] != right[0], &got[1..]), (spoiled, &right[1..]));
    }
    // Of one engine, which algorithm 0 is.
    for (engine, spoiled) in [(0, true), (1, false), (-1, false)] {
        client.dnn.tightfitMockCudnnSpoilEngine(engine);
        for _ in 0..2 {
            set.run(Operation::Forward, 0, [1.0, 0.0], (0, 0));
            assert_eq!(set.output(Operation::Forward)[0] != right[0], spoiled, "{engine}");
        }
    }
}

#[test]
fn handles_are_used_again_and_failures_are_told() {
    let client = client();
    let first = client.tensor(F32, &[1, 1, 1, 1], &[1; 4]);
    client.fail("cudnnDestroyTensorDescriptor", 1, 99999);
    assert_eq!(client.dnn.cudnnDestroyTensorDescriptor(first), 99999);
    assert_eq!(client.count("tensor-descriptors"), 0, "given back all the same");
    assert_eq!(client.tensor(F32, &[1, 1, 1, 1], &[1; 4]), first);
    client.fail("cudnnCreateTensorDescriptor", 2, 4000);
    let mut tensor = 0;
    let statuses = [0; 3].map(|_: i32| client.dnn.cudnnCreateTensorDescriptor(&mut tensor));
    assert_eq!(statuses, [0, 4000, 0]);
    client.dnn.tightfitMockCudnnSetVersion(8907);
    assert_eq!(client.dnn.cudnnGetVersion(), 8907);
}

#[test]
fn every_function_fails_in_turn() {
    let client = client();
    let program = |client: &Client| {
        let mut answers = Vec::new();
        let (d, mut tensor, mut filter, mut convolution) = (client.dnn, 0, 0, 0);
        let (mut handle, mut stream, ones) = (0, 0, [1; 4]);
        let (ones, zeros) = (ones.as_ptr(), [0; 2]);
        answers.push(("cudnnCreate", d.cudnnCreate(&mut handle)));
        answers.push(("cudnnSetStream", d.cudnnSetStream(handle, client.stream)));
        answers.push(("cudnnGetStream", d.cudnnGetStream(handle, &mut stream)));
        answers.push(("cudnnCreateTensorDescriptor", d.cudnnCreateTensorDescriptor(&mut tensor)));
        answers.push(("cudnnSetTensorNdDescriptor", d.cudnnSetTensorNdDescriptor(tensor, F32, 4, ones, ones)));
        answers.push(("cudnnCreateFilterDescriptor", d.cudnnCreateFilterDescriptor(&mut filter)));
        answers.push(("cudnnSetFilterNdDescriptor", d.cudnnSetFilterNdDescriptor(filter, F32, 0, 4, ones)));
        answers.push(("cudnnCreateConvolutionDescriptor", d.cudnnCreateConvolutionDescriptor(&mut convolution)));
        let status = d.cudnnSetConvolutionNdDescriptor(convolution, 2, zeros.as_ptr(), ones, ones, 1, F32);
        answers.push(("cudnnSetConvolutionNdDescriptor", status));
        answers.push(("cudnnSetConvolutionGroupCount", d.cudnnSetConvolutionGroupCount(convolution, 1)));
        answers.push(("cudnnSetConvolutionMathType", d.cudnnSetConvolutionMathType(convolution, 0)));
        let (t, c, data, one, mut bytes) = (tensor, convolution, client.cuda.allocate(12), 1.0, 0);
        let [a, b, y] = [data, data + 4, data + 8];
        let status = d.cudnnGetConvolutionForwardWorkspaceSize(handle, t, filter, c, t, 0, &mut bytes);
        answers.push(("cudnnGetConvolutionForwardWorkspaceSize", status));
        let status = d.cudnnGetConvolutionBackwardDataWorkspaceSize(handle, filter, t, c, t, 0, &mut bytes);
        answers.push(("cudnnGetConvolutionBackwardDataWorkspaceSize", status));
        let status = d.cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, t, t, c, filter, 0, &mut bytes);
        answers.push(("cudnnGetConvolutionBackwardFilterWorkspaceSize", status));
        let status = d.cudnnConvolutionForward(handle, &one, t, a, filter, b, c, 0, 0, 0, &one, t, y);
        answers.push(("cudnnConvolutionForward", status));
        let status = d.cudnnConvolutionBackwardData(handle, &one, filter, a, t, b, c, 0, 0, 0, &one, t, y);
        answers.push(("cudnnConvolutionBackwardData", status));
        let status = d.cudnnConvolutionBackwardFilter(handle, &one, t, a, t, b, c, 0, 0, 0, &one, filter, y);
        answers.push(("cudnnConvolutionBackwardFilter", status));
        // Not only the stream: with a failed cudnnSetStream the work went to the default one.
        client.cuda.cuCtxSynchronize();
        client.cuda.cuMemFree_v2(data);
        answers.push(("cudnnDestroyTensorDescriptor", d.cudnnDestroyTensorDescriptor(tensor)));
        answers.push(("cudnnDestroyFilterDescriptor", d.cudnnDestroyFilterDescriptor(filter)));
        answers.push(("cudnnDestroyConvolutionDescriptor", d.cudnnDestroyConvolutionDescriptor(convolution)));
        answers.push(("cudnnDestroy", d.cudnnDestroy(handle)));
        answers
    };
    let whole = program(&client);
    assert!(whole.iter().all(|&(_, status)| status == 0), "{whole:?}");
    for (name, status) in whole.iter().flat_map(|&(name, _)| [(name, 4000), (name, 99999)]) {
        client.fail(name, 1, status);
        assert!(program(&client).contains(&(name, status)), "{name} did not fail");
        let live = ["tensor-descriptors", "filter-descriptors", "convolution-descriptors"].map(|k| client.count(k));
        assert_eq!((live, client.count("handles")), ([0; 3], 1), "{name}");
    }
}

#[test]
fn threads_with_their_own_handles_do_not_disturb_each_other() {
    let client = client();
    let case = Case::dense(2, 2, 2);
    let (sums, set) = (case.expected(Operation::Forward).0, Set::new(&client, &case, F32, F32));
    let expected: Vec<f32> = sums.iter().map(|&s| s as f32).collect();
    let (cuda, dnn, len) = (&*client.cuda, client.dnn, expected.len());
    let (x, w, y, c, [dx, dw, _]) = (set.x, set.w, set.y, set.convolution, set.data);
    let mut context = 0;
    cuda.cuCtxGetCurrent(&mut context);
    let work = move || {
        cuda.cuCtxSetCurrent(context);
        let (mut handle, stream, out) = (0, cuda.stream(), cuda.allocate(len * 4));
        assert_eq!(dnn.cudnnCreate(&mut handle) + dnn.cudnnSetStream(handle, stream), 0);
        for _ in 0..20 {
            let status = dnn.cudnnConvolutionForward(handle, &1.0, x, dx, w, dw, c, 0, 0, 0, &0.0, y, out);
            assert_eq!(status, 0);
        }
        assert_eq!(cuda.cuStreamSynchronize(stream), 0);
        let floats = |bytes: Vec<u8>| bytes.chunks(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
        let result: Vec<f32> = floats(cuda.bytes(out, len * 4));
        assert_eq!(dnn.cudnnDestroy(handle) + cuda.cuStreamDestroy_v2(stream) + cuda.cuMemFree_v2(out), 0);
        result
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(work)).collect();
        threads.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), expected));
    });
    assert_eq!((client.count("handles"), client.count("executions")), (1, 160));
}
