//! The backend API: every engine computes or refuses, and the rules of descriptors.

use crate::client::case::{Case, OPERATIONS, Operation, cases};
use crate::client::{BF16, Client, F16, F32, client, round};

const INT64: i32 = 3;
const FLOAT: i32 = 4;
const DESCRIPTOR: i32 = 15;

/// The attributes of an operation: x, w, y, convolution, alpha, beta; and its descriptor kind.
fn names(operation: Operation) -> ([i32; 6], i32) {
    match operation {
        Operation::Forward => ([704, 703, 705, 702, 700, 701], 10),
        Operation::BackwardData => ([710, 709, 711, 708, 706, 707], 12),
        Operation::BackwardFilter => ([716, 715, 717, 714, 712, 713], 11),
    }
}

/// An operation of a case; `kinds` are the types of x, w, y, whose uids are 1, 2, 3.
fn operation(client: &Client, case: &Case, operation: Operation, kinds: [i32; 3], alignment: i64, beta: f32) -> usize {
    let dims = case.dims();
    let tensors: Vec<usize> = (0..3)
        .map(|i| {
            let (sizes, strides) = (case.described(&dims[i]), case.described(&case.strides(&dims[i])));
            client.backend_tensor(kinds[i], i as i64 + 1, alignment, &sizes, &strides)
        })
        .collect();
    let convolution = client.descriptor(1);
    client.set(convolution, 100, 1, &[F32]);
    client.set(convolution, 101, 7, &[1]);
    client.set(convolution, 106, INT64, &[case.spatial as i64]);
    for (name, values) in [(105, case.pre), (104, case.post), (103, case.stride), (102, case.dilation)] {
        client.set(convolution, name, INT64, &case.spatially(&values));
    }
    assert_eq!(client.finalize(convolution), 0);
    let ([x, w, y, conv, alpha, b], kind) = names(operation);
    let node = client.descriptor(kind);
    for (name, value) in [(x, tensors[0]), (w, tensors[1]), (y, tensors[2]), (conv, convolution)] {
        assert_eq!(client.set(node, name, DESCRIPTOR, &[value]), 0);
    }
    client.set(node, alpha, FLOAT, &[2f32]);
    client.set(node, b, FLOAT, &[beta]);
    assert_eq!(client.finalize(node), 0);
    // The parts of an operation may be destroyed at once.
    tensors.iter().chain([&convolution]).for_each(|&d| assert_eq!(client.dnn.cudnnBackendDestroyDescriptor(d), 0));
    node
}

fn graph(client: &Client, node: usize) -> usize {
    let graph = client.descriptor(15);
    client.set(graph, 800, 0, &[client.handle]);
    client.set(graph, 801, DESCRIPTOR, &[node]);
    assert_eq!(client.finalize(graph), 0);
    graph
}

/// A configuration of an engine by index, its knob turned if asked.
fn config(client: &Client, graph: usize, index: i64, knob: Option<(i32, i64)>) -> Result<usize, i32> {
    let engine = client.descriptor(2);
    client.set(engine, 1300, DESCRIPTOR, &[graph]);
    client.set(engine, 1301, INT64, &[index]);
    let check = |status: i32| if status == 0 { Ok(()) } else { Err(status) };
    check(client.finalize(engine))?;
    let config = client.descriptor(3);
    client.set(config, 300, DESCRIPTOR, &[engine]);
    if let Some((kind, value)) = knob {
        let choice = client.descriptor(7);
        client.set(choice, 600, 9, &[kind]);
        client.set(choice, 601, INT64, &[value]);
        assert_eq!(client.finalize(choice), 0);
        client.set(config, 302, DESCRIPTOR, &[choice]);
    }
    check(client.finalize(config)).map(|()| config)
}

fn plan(client: &Client, config: usize) -> Result<usize, i32> {
    let plan = client.descriptor(5);
    client.set(plan, 401, DESCRIPTOR, &[config]);
    match client.finalize(plan) {
        0 => Ok(plan),
        status => Err(status),
    }
}

fn workspace(client: &Client, descriptor: usize, name: i32) -> i64 {
    let mut bytes = [-1i64];
    assert_eq!(client.get(descriptor, name, INT64, &mut bytes), (0, 1));
    bytes[0]
}

fn execute(client: &Client, plan: usize, data: &[(i64, u64)]) -> i32 {
    let (uids, pointers): (Vec<i64>, Vec<u64>) = data.iter().copied().unzip();
    let bytes = workspace(client, plan, 402) as usize;
    let space = if bytes > 0 { client.cuda.allocate(bytes) } else { 0 };
    let pack = client.descriptor(16);
    client.set(pack, 1000, INT64, &uids);
    client.set(pack, 1001, 6, &pointers);
    client.set(pack, 1003, 6, &[space]);
    assert_eq!(client.finalize(pack), 0);
    let status = client.dnn.cudnnBackendExecute(client.handle, plan, pack);
    assert_ne!(client.set(pack, 1001, 6, &pointers), 0, "finalized is final");
    client.cuda.cuStreamSynchronize(client.stream);
    client.cuda.cuMemFree_v2(space);
    status
}

/// Runs one engine. Returns the output, or the status it was refused with.
fn run(client: &Client, case: &Case, op: Operation, kinds: [i32; 3], beta: f32, index: i64) -> Result<Vec<f32>, i32> {
    let graph = graph(client, operation(client, case, op, kinds, 16, beta));
    let config = config(client, graph, index, None)?;
    let plan = plan(client, config)?;
    assert_eq!(workspace(client, config, 303), workspace(client, plan, 402));
    let data = [0, 1, 2].map(|i| client.upload(kinds[i], &case.data(i)));
    let which = Case::output(op);
    assert_eq!(execute(client, plan, &[(1, data[0]), (3, data[2]), (2, data[1])]), 0);
    let output = client.download(kinds[which], data[which], case.data(which).len());
    data.iter().for_each(|&d| assert_eq!(client.cuda.cuMemFree_v2(d), 0));
    Ok(output)
}

#[test]
fn every_engine_computes_the_definition_or_refuses() {
    let client = client();
    let mut computed = [0; 11];
    let uneven = Case { pre: [0, 2, 0], post: [0, 0, 1], ..Case::dense(2, 3, 2) };
    for (case, op) in cases().iter().chain([&uneven]).flat_map(|c| OPERATIONS.map(|o| (c, o))) {
        let (sums, magnitudes) = case.expected(op);
        for (index, beta) in (0..11).flat_map(|i| [(i, 0f32), (i, 3.0)]) {
            let output = match run(&client, case, op, [F32; 3], beta, index) {
                Ok(output) => output,
                Err(status) => {
                    assert!((3000..4000).contains(&status), "{case:?} {op:?} {index}: {status}");
                    continue;
                }
            };
            computed[index as usize] += 1;
            let before = case.data(Case::output(op));
            for (i, got) in output.iter().enumerate() {
                let expected = 2.0 * sums[i] + f64::from(beta * before[i]);
                // Transforms add at most 5e-7 of the magnitudes, doubled by alpha.
                let slack = if [4, 5, 9, 10].contains(&index) { 2e-6 * magnitudes[i] + 1e-6 } else { 0.0 };
                assert!((f64::from(*got) - expected).abs() <= slack, "{case:?} {op:?} engine {index} beta {beta}");
            }
        }
    }
    assert_eq!(computed.map(|c| c > 0), std::array::from_fn(|i| i != 8), "all but the empty engine: {computed:?}");
    assert_eq!(run(&client, &uneven, Operation::Forward, [F32; 3], 0.0, 11), Err(2000));
    assert_eq!(run(&client, &uneven, Operation::Forward, [F32; 3], 1.0, 7), Err(3002), "down-convert cannot add");
}

#[test]
fn half_types_round_once_and_sum_into_f32() {
    let client = client();
    let case = Case::dense(9, 8, 8);
    for (op, kind) in OPERATIONS.into_iter().flat_map(|o| [(o, F16), (o, BF16)]) {
        let (sums, _) = case.expected(op);
        let exact: Vec<f32> = sums.iter().map(|&s| 2.0 * s as f32).collect();
        let rounded: Vec<f32> = exact.iter().map(|&v| round(kind, v)).collect();
        assert_eq!(run(&client, &case, op, [kind; 3], 0.0, 0), Ok(rounded));
        let mut kinds = [kind; 3];
        kinds[Case::output(op)] = F32;
        assert_eq!(run(&client, &case, op, kinds, 0.0, 3), Ok(exact));
        assert_eq!(run(&client, &case, op, kinds, 0.0, 1), Err(3003), "no f32 output here");
    }
}

#[test]
fn one_engine_sums_in_another_order_each_time() {
    let client = client();
    let case = Case { input: [1, 1, 1], filter: [1, 1, 1], pre: [0; 3], post: [0; 3], ..Case::dense(1, 4, 1) };
    let graph = graph(&client, operation(&client, &case, Operation::Forward, [F32; 3], 4, 0.0));
    let plan = plan(&client, config(&client, graph, 6, None).unwrap()).unwrap();
    // 1e8 + 3 + 3 - 1e8 depends on the order in f32.
    let data = [vec![1e8, 3.0, 3.0, -1e8], vec![1.0; 4], vec![0.0]].map(|d| client.upload(F32, &d));
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..8 {
        execute(&client, plan, &[(1, data[0]), (2, data[1]), (3, data[2])]);
        seen.insert(client.download(F32, data[2], 1)[0].to_bits());
    }
    assert!(seen.len() > 1);
}

#[test]
fn heuristics_give_configurations_that_run() {
    let client = client();
    let case = Case::dense(2, 2, 2);
    let graph = graph(&client, operation(&client, &case, Operation::Forward, [F32; 3], 16, 0.0));
    let mut engines = [0i64];
    assert_eq!((client.get(graph, 802, INT64, &mut engines), engines), ((0, 1), [11]));
    for (mode, least) in [(0, 6), (3, 6), (1, 10), (2, 2)] {
        let heuristics = client.descriptor(4);
        client.set(heuristics, 200, 8, &[mode]);
        client.set(heuristics, 201, DESCRIPTOR, &[graph]);
        assert_eq!(client.finalize(heuristics), 0);
        let (status, count) = client.get::<usize>(heuristics, 202, DESCRIPTOR, &mut []);
        assert!(status == 0 && count >= least, "mode {mode}: {count}");
        let mut configs: Vec<usize> = (0..count).map(|_| client.descriptor(3)).collect();
        assert_eq!(client.get(heuristics, 202, DESCRIPTOR, &mut configs), (0, count));
        client.dnn.cudnnBackendDestroyDescriptor(heuristics);
        for config in configs {
            let mut engine = [client.descriptor(2)];
            assert_eq!(client.get(config, 300, DESCRIPTOR, &mut engine), (0, 1));
            let (mut index, mut notes) = ([-1i64], [-1i32; 10]);
            assert_eq!(client.get(engine[0], 1301, INT64, &mut index), (0, 1));
            let (status, noted) = client.get(engine[0], 1303, 11, &mut notes);
            assert_eq!(status, 0);
            assert_eq!(notes[..noted as usize].contains(&0), [3, 7].contains(&index[0]), "tensor cores");
            assert_eq!(notes[..noted as usize].contains(&4), index[0] == 6, "non-deterministic");
            assert!(plan(&client, config).is_ok());
        }
        assert_eq!(client.count("mode-b"), u64::from(mode == 1 || mode == 2), "mode {mode}");
    }
}

#[test]
fn knobs_change_the_workspace() {
    let client = client();
    let graph = graph(&client, operation(&client, &Case::dense(32, 4, 4), Operation::Forward, [F32; 3], 16, 0.0));
    let engine = client.descriptor(2);
    client.set(engine, 1300, DESCRIPTOR, &[graph]);
    client.set(engine, 1301, INT64, &[2i64]);
    assert_eq!(client.finalize(engine), 0);
    let mut info = [client.descriptor(8)];
    assert_eq!(client.get(engine, 1302, DESCRIPTOR, &mut info), (0, 1));
    let (mut kind, mut most) = ([-1i32], [-1i64]);
    client.get(info[0], 1200, 9, &mut kind);
    client.get(info[0], 1201, INT64, &mut most);
    assert_eq!((kind, most), ([25], [2]));
    let bytes = |knob| workspace(&client, config(&client, graph, 2, Some((25, knob))).unwrap(), 303);
    assert_eq!((bytes(1) * 2, bytes(2) * 4), (bytes(0), bytes(0)));
    assert_eq!(config(&client, graph, 2, Some((25, 3))), Err(3000));
    assert_eq!(config(&client, graph, 2, Some((17, 1))), Err(2000));
    client.dnn.tightfitMockCudnnLieWorkspace(-256);
    let lied = bytes(0);
    client.dnn.tightfitMockCudnnLieWorkspace(0);
    assert_eq!(lied, bytes(0) - 256);
}

#[test]
fn alignment_is_promised_and_kept() {
    let client = client();
    let case = Case::dense(1, 1, 1);
    let low = graph(&client, operation(&client, &case, Operation::Forward, [F32; 3], 4, 0.0));
    assert_eq!(plan(&client, config(&client, low, 3, None).unwrap()), Err(3000), "tensor cores need 16");
    let high = graph(&client, operation(&client, &case, Operation::Forward, [F32; 3], 16, 0.0));
    let plan = plan(&client, config(&client, high, 0, None).unwrap()).unwrap();
    let data = client.cuda.allocate(4096);
    assert_eq!(execute(&client, plan, &[(1, data + 4), (2, data + 1024), (3, data + 2048)]), 2003);
    assert_eq!(execute(&client, plan, &[(1, data), (2, data + 1024)]), 2000, "no address for y");
    let tensor = client.descriptor(17);
    client.set(tensor, 901, 1, &[F32]);
    client.set(tensor, 906, INT64, &[1i64]);
    client.set(tensor, 900, INT64, &[2i64]);
    client.set(tensor, 902, INT64, &[1i64; 4]);
    client.set(tensor, 903, INT64, &[1i64; 4]);
    assert_eq!(client.finalize(tensor), 2000, "under the element's size");
}

#[test]
fn descriptors_keep_their_rules() {
    let client = client();
    let node = operation(&client, &Case::dense(1, 2, 3), Operation::Forward, [F32; 3], 4, 0.0);
    let graph = graph(&client, node);
    assert_eq!(
        client.get(graph, 801, DESCRIPTOR, &mut [client.descriptor(10)]).0,
        3000,
        "the real one tells not either"
    );
    let mut x = [client.descriptor(17)];
    assert_eq!(client.get(node, 704, DESCRIPTOR, &mut x), (0, 1));
    let mut dims = [0i64; 8];
    assert_eq!(client.get(x[0], 902, INT64, &mut dims), (0, 5));
    assert_eq!(dims[..5], [1, 2, 1, 6, 5], "in five dimensions");
    let open = client.descriptor(17);
    assert_eq!(client.get(open, 902, INT64, &mut dims).0, 2004);
    assert_eq!(client.set(client.descriptor(15), 801, DESCRIPTOR, &[open]), 2004);
    assert_eq!(client.set(open, 902, FLOAT, &[1f32]), 2010);
    assert_eq!(client.set(open, 4242, INT64, &[1i64]), 2000);
    let mut many = 0;
    assert_eq!(client.dnn.cudnnBackendCreateDescriptor(18, &mut many), 3000);
    let before = client.count("backend-descriptors");
    client.dnn.cudnnBackendDestroyDescriptor(open);
    assert_eq!(client.dnn.cudnnBackendDestroyDescriptor(open), 2000);
    assert_eq!(client.count("backend-descriptors"), before - 1);
    assert_eq!(client.descriptor(17), open, "the handle is used again");
}

#[test]
fn pointwise_adds_scales_and_converts() {
    let client = client();
    let run = |mode: i32, kinds: [i32; 3]| {
        let pointwise = client.descriptor(0);
        client.set(pointwise, 0, 14, &[mode]);
        client.set(pointwise, 1, 1, &[F32]);
        assert_eq!(client.finalize(pointwise), 0);
        let tensor = |i: usize| client.backend_tensor(kinds[i], i as i64 + 1, 4, &[1, 1, 4], &[4, 4, 1]);
        let node = client.descriptor(13);
        client.set(node, 750, DESCRIPTOR, &[pointwise]);
        client.set(node, 751, DESCRIPTOR, &[tensor(0)]);
        if mode != 21 {
            client.set(node, 752, DESCRIPTOR, &[tensor(1)]);
        }
        client.set(node, 753, DESCRIPTOR, &[tensor(2)]);
        client.set(node, 754, FLOAT, &[2f32]);
        client.set(node, 755, FLOAT, &[0.5f32]);
        assert_eq!(client.finalize(node), 0);
        let plan = plan(&client, config(&client, graph(&client, node), 0, None).unwrap()).unwrap();
        let (x, b) = (client.upload(kinds[0], &[1.0, 2.0, 3.0, 4097.0]), client.upload(kinds[1], &[4.0; 4]));
        // The output takes the place of b.
        assert_eq!(execute(&client, plan, &[(1, x), (2, b), (3, b)]), 0);
        client.download(kinds[2], b, 4)
    };
    assert_eq!(run(0, [F32, F32, F32]), [4.0, 6.0, 8.0, 8196.0]);
    assert_eq!(run(1, [F32, F32, F32]), [4.0, 8.0, 12.0, 16388.0]);
    assert_eq!(run(0, [F32, F16, F16]), [4.0, 6.0, 8.0, 8192.0], "8196 lies between two halves, ties to even");
    assert_eq!(run(21, [F32, BF16, BF16]), [2.0, 4.0, 6.0, 8192.0]);
}

#[test]
fn every_function_fails_in_turn() {
    let client = client();
    let case = Case::dense(1, 1, 1);
    for status in [3000, 99999] {
        let node = operation(&client, &case, Operation::Forward, [F32; 3], 4, 0.0);
        let graph = graph(&client, node);
        let made = config(&client, graph, 0, None).unwrap();
        let ready = plan(&client, made).unwrap();
        client.fail("cudnnBackendFinalize", 2, status);
        assert_eq!(
            config(&client, graph, 0, None),
            Err(status),
            "the engine is the first, the configuration the second"
        );
        client.fail("cudnnBackendExecute", 1, status);
        let data = client.cuda.allocate(4096);
        assert_eq!(execute(&client, ready, &[(1, data), (2, data + 1024), (3, data + 2048)]), status);
        client.fail("cudnnBackendSetAttribute", 1, status);
        assert_eq!(client.set(client.descriptor(17), 900, INT64, &[4i64]), status);
        client.fail("cudnnBackendGetAttribute", 1, status);
        assert_eq!(client.get(made, 303, INT64, &mut [0i64]).0, status);
        client.fail("cudnnBackendCreateDescriptor", 1, status);
        assert_eq!(client.dnn.cudnnBackendCreateDescriptor(17, &mut 0), status);
    }
}
