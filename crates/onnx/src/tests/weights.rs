//! Parameters that a file holds or computes in any way, their sharing, and refusals.

use super::*;

/// Filters of 1x1 over two channels, named `w`, made by these nodes.
fn filters(nodes: Vec<NodeProto>, initializers: Vec<TensorProto>) -> ModelProto {
    let mut all = nodes;
    all.push(node("Conv", &["x", "w"], &["y"], &[]));
    model(&[-1, 2, 3, 3], initializers, all)
}

fn weights_of(model: &ModelProto) -> Result<Vec<Numbers>, Error> {
    let (_folder, path) = file(&bytes(model));
    Model::read(&path)?.weights()
}

fn only(model: &ModelProto) -> Vec<f32> {
    let mut all = weights_of(model).unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0).numbers
}

#[test]
fn whole_numbers_with_a_scale_are_weights() {
    let small = |name: &str, dims: &[i64], all: &[i8]| TensorProto {
        name: name.to_owned(),
        dims: dims.to_vec(),
        data_type: data_type::INT8,
        raw_data: all.iter().map(|&one| one as u8).collect::<Vec<u8>>().into(),
        ..TensorProto::default()
    };
    let q = || small("q", &[2, 2, 1, 1], &[-128, 127, 0, 4]);
    let made = |inputs: &[&str], attributes: &[(&str, Is<'_>)], scale: TensorProto| {
        let nodes = vec![node("DequantizeLinear", inputs, &["w"], attributes)];
        at(21, filters(nodes, vec![q(), scale, small("z", &[2], &[1, -1])]))
    };
    let whole = floats("s", &[], &[0.5]);
    assert_eq!(only(&made(&["q", "s"], &[], whole)), [-64.0, 63.5, 0.0, 2.0]);
    let rows = || floats("s", &[2], &[0.5, 2.0]);
    assert_eq!(only(&made(&["q", "s", "z"], &[("axis", Is::Int(0))], rows())), [-64.5, 63.0, 2.0, 10.0]);
    assert_eq!(only(&made(&["q", "s", "z"], &[], rows())), [-64.5, 256.0, -0.5, 10.0]);
    let blocks = floats("s", &[1, 2, 1, 1], &[1.0, 10.0]);
    let attributes = [("axis", Is::Int(0)), ("block_size", Is::Int(2))];
    assert_eq!(only(&made(&["q", "s"], &attributes, blocks)), [-128.0, 1270.0, 0.0, 40.0]);
    let wrong = weights_of(&made(&["q", "s"], &[], floats("s", &[3], &[1.0; 3]))).unwrap_err().to_string();
    assert!(wrong.contains("a scale or zero point of [3] for [2, 2, 1, 1] along axis 1"), "{wrong}");
}

#[test]
fn small_types_are_read_from_either_field() {
    // 1, -2, 0.5 and 300 in 16 bits, as numbers of variable length and as bytes.
    let bits = [0x3c00u16, 0xc000, 0x3800, 0x5cb0];
    let varints: Vec<u8> =
        bits.iter().flat_map(|&bits| [bits as u8 | 0x80, (bits >> 7) as u8 | 0x80, (bits >> 14) as u8]).collect();
    let half = TensorProto { data_type: data_type::FLOAT16, ..floats("w", &[2, 2, 1, 1], &[]) };
    let spelled = TensorProto { int32_data: varints.clone().into(), ..half.clone() };
    let raw = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect::<Vec<u8>>();
    let raw = TensorProto { raw_data: raw.into(), ..half.clone() };
    for tensor in [spelled, raw] {
        assert_eq!(only(&filters(vec![], vec![tensor])), [1.0, -2.0, 0.5, 300.0]);
    }
    let short = TensorProto { int32_data: varints[..9].to_vec().into(), ..half.clone() };
    let error = weights_of(&filters(vec![], vec![short])).unwrap_err().to_string();
    assert!(error.contains("layer the_Conv: the weights `w` have 3 numbers, not the 4 of [2, 2, 1, 1]"), "{error}");
    let strange = TensorProto { data_type: 17, ..half };
    let error = weights_of(&filters(vec![], vec![strange])).unwrap_err().to_string();
    assert!(error.contains("have the type float8e4m3fn, which is not supported"), "{error}");
}

#[test]
fn weights_that_cannot_be_computed_name_the_layer_and_the_node() {
    let v = || weights("v", &[2, 2, 1, 1]);
    let stated = |mut model: ModelProto| {
        model.graph.as_mut().unwrap().value_info = vec![value("w", &[2, 2, 1, 1])];
        model
    };
    for (nodes, part) in [
        (vec![node("RandomNormal", &[], &["w"], &[("shape", Is::Ints(&[2, 2, 1, 1]))])], "its numbers are random"),
        (vec![node("Strange", &["v"], &["s"], &[]), node("Neg", &["s"], &["w"], &[])], "the operator is not supported"),
        (
            vec![node("QuantizeLinear", &["v", "v"], &["w"], &[("precision", Is::Int(1))])],
            "attribute `precision` = 1, not 0",
        ),
    ] {
        let (name, operator) = (nodes[0].name.clone(), nodes[0].op_type.clone());
        let mut model = at(23, stated(filters(nodes, vec![v()])));
        model.graph.as_mut().unwrap().value_info.push(value("s", &[2, 2, 1, 1]));
        read(&model).unwrap();
        let error = weights_of(&model).unwrap_err().to_string();
        let place =
            format!("layer the_Conv: the weights `w` are computed by node `{name}`, an operator `{operator}`: {part}");
        assert!(error.contains(&place), "{error}");
    }
    let mut sparse = filters(vec![], vec![]);
    sparse.graph.as_mut().unwrap().sparse_initializer = vec![SparseTensorProto { values: Some(v()) }];
    assert!(error(&sparse).contains("initializer `v` is sparse"));
}

/// An `If` over the convolution's output, whose condition is `yes`; both branches use the same names.
fn chooses(condition: Vec<NodeProto>, initializers: Vec<TensorProto>) -> ModelProto {
    let branch = |operator: &str| GraphProto {
        node: vec![node(operator, &["c"], &["inner"], &[]), node("Identity", &["inner"], &["out"], &[])],
        output: vec![ValueInfoProto { name: "out".to_owned(), r#type: None }],
        ..GraphProto::default()
    };
    let gate = |input: &str, output: &str| {
        let mut gate = node("If", &["yes"], &[output], &[]);
        for (name, operator) in [("then_branch", "Relu"), ("else_branch", "Sigmoid")] {
            let mut graph = branch(operator);
            graph.node[0].input[0] = input.to_owned();
            gate.attribute.push(AttributeProto { name: name.to_owned(), g: Some(graph), ..AttributeProto::default() });
        }
        gate
    };
    let mut nodes = vec![node("Conv", &["x", "w"], &["c"], &[])];
    nodes.extend(condition);
    nodes.extend([gate("c", "first"), gate("first", "second")]);
    let mut all = initializers;
    all.push(weights("w", &[2, 2, 1, 1]));
    model(&[-1, 2, 3, 3], all, nodes)
}

#[test]
fn branches_that_are_known_take_the_place_of_their_nodes() {
    let truth = |holds: bool| TensorProto {
        data_type: data_type::BOOL,
        raw_data: vec![u8::from(holds)].into(),
        ..integers("yes", &[])
    };
    let truth = |holds: bool| TensorProto { dims: vec![], ..truth(holds) };
    for (holds, operator) in [(true, "relu"), (false, "Sigmoid")] {
        let model = chooses(vec![], vec![truth(holds)]);
        let kinds: Vec<String> = text(&read(&model).unwrap());
        assert_eq!(kinds.iter().filter(|kind| kind.contains(operator)).count(), 2, "{kinds:?}");
        assert_eq!(only(&model), [0.5; 4]);
    }
    // As PyTorch exports a squeeze: the condition follows from a shape.
    let shape = vec![
        node("Shape", &["c"], &["dims"], &[]),
        node("Gather", &["dims", "one"], &["channels"], &[]),
        node("Equal", &["channels", "two"], &["yes"], &[]),
    ];
    let kinds = text(&read(&chooses(shape, vec![integers("one", &[1]), integers("two", &[2])])).unwrap());
    assert_eq!(kinds.iter().filter(|kind| kind.contains("relu")).count(), 2, "{kinds:?}");
    let samples = vec![node("Cast", &["c"], &["yes"], &[("to", Is::Int(9))])];
    let error = error(&chooses(samples, vec![]));
    assert!(
        error.contains("node `the If`, operator `If`: its condition is not known before the model runs"),
        "{error}"
    );
}

#[test]
fn free_mini_batches_are_written_in_several_ways() {
    for free in [-1, 0] {
        let mut model = filters(vec![], vec![weights("w", &[2, 2, 1, 1])]);
        let input = model.graph.as_mut().unwrap().input[0].r#type.as_mut().unwrap();
        input.tensor_type.as_mut().unwrap().shape.as_mut().unwrap().dim[0].dim_value = Some(free);
        assert_eq!(text(&read(&model).unwrap())[1], "the_Conv convolution 2x3x3");
    }
}

#[test]
fn weights_may_follow_from_the_shape_of_samples_but_not_from_their_number() {
    let by_extent = |batch: i64, at: i64| {
        let nodes = vec![
            node("Shape", &["x"], &["dims"], &[]),
            node("Gather", &["dims", "at"], &["extent"], &[]),
            node("Cast", &["extent"], &["number"], &[("to", Is::Int(1))]),
            node("Mul", &["v", "number"], &["w"], &[]),
        ];
        let mut model = filters(nodes, vec![weights("v", &[2, 2, 1, 1]), integers("at", &[at])]);
        model.graph.as_mut().unwrap().input = vec![value("x", &[batch, 2, 3, 3])];
        model
    };
    assert_eq!(only(&by_extent(-1, 2)), [1.5; 4]);
    assert_eq!(only(&by_extent(4, 0)), [2.0; 4]);
    let error = weights_of(&by_extent(-1, 0)).unwrap_err().to_string();
    assert!(error.contains("layer the_Conv: the weights `w` depend on the size of the mini-batch"), "{error}");
}

/// Two convolutions by these filters.
fn twice(first: &str, second: &str, nodes: Vec<NodeProto>) -> Model {
    let mut all = nodes;
    all.extend([node("Conv", &["x", first], &["c"], &[]), node("Conv", &["c", second], &["y"], &[])]);
    let model = model(&[-1, 2, 3, 3], vec![weights("c.weight", &[2, 2, 1, 1]), floats("half", &[], &[0.5])], all);
    let (_folder, path) = file(&bytes(&model));
    Model::read(&path).unwrap()
}

#[test]
fn equal_uses_are_shared_and_different_uses_refused() {
    let model = twice("c.weight", "c.weight", vec![]);
    let [shared] = &model.shared().unwrap()[..] else { panic!("one tensor is shared") };
    assert_eq!((shared.name.as_str(), shared.is_initializer, shared.uses.len()), ("c.weight", true, 2));
    let halved = || vec![node("Mul", &["c.weight", "half"], &["h"], &[])];
    let model = twice("h", "h", halved());
    let [shared] = &model.shared().unwrap()[..] else { panic!("one computed tensor is shared") };
    assert_eq!((shared.name.as_str(), shared.is_initializer, shared.uses.len()), ("h", false, 2));
    assert_eq!(model.computed().count(), 2);
    for (first, second) in [("c.weight", "h"), ("h", "c.weight")] {
        let error = twice(first, second, halved()).shared().unwrap_err().to_string();
        assert!(error.contains("use `c.weight` through different computations"), "{error}");
    }
    // The numbers of a `Constant` node are not an initializer, but are shared too.
    let held = |mut nodes: Vec<NodeProto>| {
        let tensor = Is::Tensor(weights("", &[2, 2, 1, 1]).into());
        nodes.insert(0, node("Constant", &[], &["k"], &[("value", tensor)]));
        nodes
    };
    assert_eq!(twice("k", "k", held(vec![])).shared().unwrap().len(), 1);
    let error = twice("k", "n", held(vec![node("Neg", &["k"], &["n"], &[])])).shared().unwrap_err().to_string();
    assert!(error.contains("use `k` through different computations"), "{error}");
    let turned = vec![node("Mul", &["c.weight", "half"], &["h"], &[]), node("Neg", &["c.weight"], &["n"], &[])];
    assert!(twice("h", "n", turned).shared().unwrap_err().to_string().contains("cannot be trained as one"));
    assert_eq!(
        twice(
            "h",
            "half_of_it",
            vec![
                halved().remove(0),
                node("Shape", &["h"], &["s"], &[]),
                node("ConstantOfShape", &["s"], &["half_of_it"], &[])
            ]
        )
        .shared()
        .unwrap(),
        []
    );
}
