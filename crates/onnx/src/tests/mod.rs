//! Small models, built message by message. They cover the graphs that real models lack, and every refusal. One set of helpers serves all tests.

mod damage;
mod files;
mod given;
mod weights;

use std::path::PathBuf;

use prost::Message;
use tightfit_conv::{Axis, Convolution};

use super::proto::*;
use super::*;
use tightfit_network::{LayerKind, Other, Shape};

/// An attribute, by the type of its value.
enum Is<'a> {
    Int(i64),
    Ints(&'a [i64]),
    Float(f32),
    Text(&'a str),
    Tensor(Box<TensorProto>),
}

fn node(operator: &str, inputs: &[&str], outputs: &[&str], attributes: &[(&str, Is<'_>)]) -> NodeProto {
    let text = |all: &[&str]| all.iter().map(|&name| name.to_owned()).collect::<Vec<String>>();
    let attribute = |(name, is): &(&str, Is<'_>)| {
        let mut attribute = AttributeProto { name: (*name).to_owned(), ..AttributeProto::default() };
        match is {
            Is::Int(number) => (attribute.i, attribute.r#type) = (*number, 2),
            Is::Ints(all) => (attribute.ints, attribute.r#type) = (all.to_vec(), 7),
            Is::Float(number) => (attribute.f, attribute.r#type) = (*number, 1),
            Is::Text(text) => (attribute.s, attribute.r#type) = (text.as_bytes().to_vec().into(), 3),
            Is::Tensor(tensor) => (attribute.t, attribute.r#type) = (Some((**tensor).clone()), 4),
        }
        attribute
    };
    NodeProto {
        input: text(inputs),
        output: text(outputs),
        name: format!("the {operator}"),
        op_type: operator.to_owned(),
        attribute: attributes.iter().map(attribute).collect(),
        domain: String::new(),
    }
}

fn floats(name: &str, dims: &[i64], numbers: &[f32]) -> TensorProto {
    let raw_data = numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>().into();
    TensorProto {
        name: name.to_owned(),
        dims: dims.to_vec(),
        data_type: data_type::FLOAT,
        raw_data,
        ..TensorProto::default()
    }
}

/// Weights whose numbers do not matter.
fn weights(name: &str, dims: &[i64]) -> TensorProto {
    floats(name, dims, &vec![0.5; dims.iter().product::<i64>() as usize])
}

fn integers(name: &str, numbers: &[i64]) -> TensorProto {
    let (dims, int64_data) = (vec![numbers.len() as i64], numbers.to_vec());
    TensorProto { name: name.to_owned(), dims, data_type: data_type::INT64, int64_data, ..TensorProto::default() }
}

/// Extents; -1 is an extent without a size.
fn value(name: &str, dims: &[i64]) -> ValueInfoProto {
    let dim = |&dim: &i64| match dim {
        -1 => DimensionProto { dim_value: None, dim_param: "batch".to_owned() },
        dim => DimensionProto { dim_value: Some(dim), dim_param: String::new() },
    };
    let shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor_type = Some(TensorTypeProto { elem_type: data_type::FLOAT, shape });
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { tensor_type }) }
}

/// A model of `x` with these extents. Its outputs are the outputs of the last node.
fn model(input: &[i64], initializer: Vec<TensorProto>, node: Vec<NodeProto>) -> ModelProto {
    let output = node.last().into_iter().flat_map(|last| &last.output);
    let output = output.map(|name| ValueInfoProto { name: name.clone(), r#type: None }).collect();
    let graph = GraphProto { node, initializer, input: vec![value("x", input)], output, ..GraphProto::default() };
    ModelProto { graph: Some(graph), opset_import: vec![import("", 12)] }
}

/// A version of the operators of a domain.
fn import(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: domain.to_owned(), version }
}

/// The model with operators of another version.
fn at(version: i64, model: ModelProto) -> ModelProto {
    ModelProto { opset_import: vec![import("", version)], ..model }
}

fn bytes(model: &ModelProto) -> Vec<u8> {
    model.encode_to_vec()
}

/// A file with these bytes, and the temporary folder that it is in.
fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.onnx");
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

fn read(model: &ModelProto) -> Result<Network, Error> {
    let (_folder, path) = file(&bytes(model));
    crate::open(path.to_str().unwrap())
}

/// Name, kind and shape of every layer.
fn text(network: &Network) -> Vec<String> {
    let kind = |kind: &LayerKind| match kind {
        LayerKind::Other(other) => other.operator.clone(),
        kind => kind.name().to_owned(),
    };
    network.layers().iter().map(|layer| format!("{} {} {}", layer.name, kind(&layer.kind), layer.shape)).collect()
}

fn error(model: &ModelProto) -> String {
    read(model).unwrap_err().to_string()
}

fn convolution(network: &Network) -> Convolution {
    *network.convolutions().next().unwrap().1
}

/// One convolution with these filters and attributes.
fn one_convolution(input: &[i64], filters: &[i64], attributes: &[(&str, Is<'_>)]) -> ModelProto {
    model(input, vec![weights("w", filters)], vec![node("Conv", &["x", "w"], &["y"], attributes)])
}

#[test]
fn convolutions_keep_groups_dilation_and_uneven_padding() {
    let attributes = [
        ("group", Is::Int(2)),
        ("dilations", Is::Ints(&[2, 1])),
        ("strides", Is::Ints(&[1, 3])),
        ("pads", Is::Ints(&[1, 0, 2, 4])),
    ];
    let network = read(&one_convolution(&[-1, 4, 9, 8], &[6, 2, 3, 5], &attributes)).unwrap();
    let rows = Axis { input: 9, filter: 3, pad_before: 1, pad_after: 2, stride: 1, dilation: 2 };
    let columns = Axis { input: 8, filter: 5, pad_before: 0, pad_after: 4, stride: 3, dilation: 1 };
    assert_eq!(convolution(&network), Convolution::new(4, 6, 2, &[rows, columns]).unwrap());
    assert_eq!(text(&network), ["input input 4x9x8", "the_Conv convolution 6x8x3", "loss softmax-loss 6x8x3"]);
}

#[test]
fn automatic_padding_follows_onnx() {
    // 7 in steps of 2 are 4 windows of 4: they cover 10, 3 more than there are.
    for (auto, before, after) in [("SAME_UPPER", 1, 2), ("SAME_LOWER", 2, 1), ("VALID", 0, 0), ("NOTSET", 0, 0)] {
        let attributes = [("auto_pad", Is::Text(auto)), ("strides", Is::Ints(&[2, 2]))];
        let network = read(&one_convolution(&[3, 1, 7, 7], &[1, 1, 4, 4], &attributes)).unwrap();
        let axis = Axis { pad_before: before, pad_after: after, ..Axis::new(7, 4).stride(2) };
        assert_eq!(convolution(&network), Convolution::new(1, 1, 1, &[axis, axis]).unwrap(), "{auto}");
    }
}

#[test]
fn one_dimension_is_a_row_and_three_stay_three() {
    let row = read(&one_convolution(&[-1, 2, 9], &[4, 2, 3], &[])).unwrap();
    assert_eq!(convolution(&row), Convolution::new(2, 4, 1, &[Axis::new(1, 1), Axis::new(9, 3)]).unwrap());
    assert_eq!(row.layers()[1].shape, Shape::image(4, 1, 7));
    let cube = read(&one_convolution(&[-1, 2, 9, 8, 7], &[4, 2, 3, 3, 3], &[])).unwrap();
    assert_eq!(cube.layers()[1].shape, Shape::volume(4, 7, 6, 5));
}

/// Shape -> Gather -> Concat -> Reshape, as exporters write `x.view(x.size(0), -1)`.
fn flatten_by_arithmetic(batch: i64) -> ModelProto {
    let zero = Is::Tensor(TensorProto { dims: vec![], ..integers("", &[0]) }.into());
    model(
        &[batch, 2, 3, 4],
        vec![weights("fc.weight", &[10, 24]), weights("fc.bias", &[10]), integers("rest", &[-1])],
        vec![
            node("Shape", &["x"], &["shape"], &[]),
            node("Constant", &[], &["zero"], &[("value", zero)]),
            node("Gather", &["shape", "zero"], &["n"], &[]),
            node("Unsqueeze", &["n"], &["first"], &[("axes", Is::Ints(&[0]))]),
            node("Concat", &["first", "rest"], &["wanted"], &[("axis", Is::Int(0))]),
            node("Reshape", &["x", "wanted"], &["flat"], &[]),
            node("Gemm", &["flat", "fc.weight", "fc.bias"], &["y"], &[("transB", Is::Int(1))]),
        ],
    )
}

#[test]
fn shapes_computed_from_shapes_are_known_for_any_mini_batch() {
    let expected =
        ["input input 2x3x4", "the_Reshape.view flatten 24", "fc fully-connected 10", "loss softmax-loss 10"];
    for batch in [-1, 1, 2, 7, 24] {
        let network = read(&flatten_by_arithmetic(batch)).unwrap();
        assert_eq!(text(&network), expected, "{batch}");
        assert_eq!(network.parameters(), 250);
    }
}

#[test]
fn batch_normalization_is_taken_in_both_forms_and_the_last_softmax_is_the_loss() {
    let numbers = ["s", "b", "m", "v"].map(|name| weights(name, &[4]));
    for (outputs, training) in [(&["n"][..], 0), (&["n", "mean", "variance"][..], 1)] {
        let mut initializers = vec![weights("w", &[4, 2, 1, 1])];
        initializers.extend(numbers.clone());
        let model = model(
            &[-1, 2, 6, 6],
            initializers,
            vec![
                node("Conv", &["x", "w"], &["c"], &[]),
                node(
                    "BatchNormalization",
                    &["c", "s", "b", "m", "v"],
                    outputs,
                    &[("training_mode", Is::Int(training)), ("epsilon", Is::Float(0.25))],
                ),
                node("ReduceMean", &["n"], &["p"], &[("axes", Is::Ints(&[-2, -1])), ("keepdims", Is::Int(0))]),
                node("Softmax", &["p"], &["y"], &[]),
            ],
        );
        let network = read(&at(14, model)).unwrap();
        let names: Vec<&str> = network.layers().iter().map(|layer| layer.kind.name()).collect();
        assert_eq!(names, ["input", "convolution", "batch-norm", "average-pooling", "flatten", "softmax-loss"]);
        assert_eq!(network.layers()[2].kind, LayerKind::BatchNorm { epsilon: 0.25 });
    }
}

/// The layer of an operation that cannot run.
fn other<'a>(network: &'a Network, operator: &str) -> &'a Other {
    let found = network.layers().iter().find_map(|layer| match &layer.kind {
        LayerKind::Other(other) if other.operator == operator => Some(&**other),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no {operator}: {:?}", text(network)))
}

#[test]
fn activations_spelled_out_are_one_layer() {
    let half = floats("half", &[], &[0.5]);
    let silu = vec![node("Sigmoid", &["x"], &["s"], &[]), node("Mul", &["x", "s"], &["y"], &[])];
    let gelu = vec![
        node("Div", &["x", "half"], &["d"], &[]),
        node("Erf", &["d"], &["e"], &[]),
        node("Add", &["e", "half"], &["a"], &[]),
        node("Mul", &["x", "a"], &["m"], &[]),
        node("Mul", &["m", "half"], &["y"], &[]),
    ];
    let swish = vec![
        node("Add", &["x", "half"], &["a"], &[]),
        node("Clip", &["a", "half", "half"], &["c"], &[]),
        node("Mul", &["x", "c"], &["m"], &[]),
        node("Div", &["m", "half"], &["y"], &[]),
    ];
    for (nodes, name, layers) in [(silu, "Silu", 3), (gelu, "Gelu", 3), (swish, "HardSwish", 4)] {
        let network = read(&model(&[-1, 2, 6, 6], vec![half.clone()], nodes)).unwrap();
        assert_eq!(network.layers().len(), layers, "{:?}", text(&network));
        let found = other(&network, name);
        assert!(found.reads_inputs && !found.reads_output && found.parameters == 0, "{found:?}");
    }
    // The sigmoid is also read elsewhere, so each is a separate map.
    let mut shared = vec![node("Sigmoid", &["x"], &["s"], &[]), node("Mul", &["x", "s"], &["m"], &[])];
    shared.push(node("Add", &["m", "s"], &["y"], &[]));
    let network = read(&model(&[-1, 2, 6, 6], vec![], shared)).unwrap();
    assert!(other(&network, "Sigmoid").reads_output && other(&network, "Mul").reads_inputs);
}

#[test]
fn a_normalization_spelled_out_is_one_layer_with_its_parameters() {
    let network = read(&model(
        &[-1, 5, 8],
        vec![weights("norm.weight", &[8]), weights("norm.bias", &[8]), floats("two", &[], &[2.0])],
        vec![
            node("ReduceMean", &["x"], &["mean"], &[("axes", Is::Ints(&[-1]))]),
            node("Sub", &["x", "mean"], &["d"], &[]),
            node("Pow", &["d", "two"], &["square"], &[]),
            node("ReduceMean", &["square"], &["variance"], &[("axes", Is::Ints(&[-1]))]),
            node("Add", &["variance", "two"], &["more"], &[]),
            node("Sqrt", &["more"], &["deviation"], &[]),
            node("Div", &["d", "deviation"], &["n"], &[]),
            node("Mul", &["n", "norm.weight"], &["scaled"], &[]),
            node("Add", &["scaled", "norm.bias"], &["y"], &[]),
        ],
    ))
    .unwrap();
    assert_eq!(text(&network)[1..2], ["the_ReduceMean LayerNormalization 5x1x8"]);
    assert_eq!((network.layers().len(), other(&network, "LayerNormalization").parameters), (3, 16));
}

#[test]
fn products_know_their_arithmetic() {
    let network = read(&model(
        &[-1, 5, 8],
        vec![weights("w", &[8, 3]), weights("b", &[3])],
        vec![node("MatMul", &["x", "w"], &["m"], &[]), node("Add", &["b", "m"], &["y"], &[])],
    ))
    .unwrap();
    let found = other(&network, "MatMul");
    assert_eq!((found.multiply_adds, found.parameters, found.shape), (5 * 8 * 3, 27, Shape::image(5, 1, 3)));
    let attributes = [("strides", Is::Ints(&[2, 2])), ("pads", Is::Ints(&[1, 1, 1, 1]))];
    let wide = model(
        &[-1, 4, 5, 5],
        vec![weights("w", &[4, 6, 4, 4])],
        vec![node("ConvTranspose", &["x", "w"], &["y"], &attributes)],
    );
    let network = read(&wide).unwrap();
    let found = other(&network, "ConvTranspose");
    assert_eq!((found.shape, found.multiply_adds), (Shape::image(6, 10, 10), 25 * 4 * 6 * 16));
}

#[test]
fn several_outputs_share_one_loss() {
    let mut two =
        model(&[-1, 4, 2, 2], vec![], vec![node("Relu", &["x"], &["a"], &[]), node("Neg", &["a"], &["b"], &[])]);
    two.graph.as_mut().unwrap().output.insert(0, value("a", &[]));
    let network = read(&two).unwrap();
    assert_eq!(text(&network).last().unwrap(), "loss softmax-loss 32");
}

#[test]
fn an_operator_that_is_not_known_is_planned_if_its_shape_is_stated() {
    let strange = || vec![node("Strange", &["x"], &["s"], &[]), node("Relu", &["s"], &["y"], &[])];
    let mut stated = model(&[-1, 4, 2, 2], vec![], strange());
    stated.graph.as_mut().unwrap().value_info.push(value("s", &[-1, 7, 2, 2]));
    let network = read(&stated).unwrap();
    let found = other(&network, "Strange");
    assert!(found.reads_inputs && found.reads_output && found.shape == Shape::image(7, 2, 2));
    let message = error(&model(&[-1, 4, 2, 2], vec![], strange()));
    assert!(
        message.contains("net.onnx, node `the Strange`, operator `Strange`: the operator is not supported"),
        "{message}"
    );
}

#[test]
fn operators_of_other_domains_are_not_taken_for_those_of_onnx() {
    let mut foreign = model(&[-1, 4, 2, 2], vec![], vec![node("Relu", &["x"], &["y"], &[])]);
    foreign.graph.as_mut().unwrap().node[0].domain = "mine".to_owned();
    let message = error(&foreign);
    assert!(message.contains("operator `Relu`: the operator of `mine` is not supported"), "{message}");
    foreign.graph.as_mut().unwrap().output[0] = value("y", &[-1, 3]);
    assert_eq!(other(&read(&foreign).unwrap(), "Relu").shape, Shape::flat(3));
}

#[test]
fn numbers_that_stretch_a_product_are_a_sum_of_their_own() {
    let numbers = vec![weights("w", &[8, 1]), weights("b", &[6])];
    let nodes = || vec![node("MatMul", &["x", "w"], &["m"], &[]), node("Add", &["m", "b"], &["y"], &[])];
    let network = read(&model(&[-1, 8], numbers, nodes())).unwrap();
    let expected = ["input input 8", "the_MatMul fully-connected 1", "the_Add Add 6", "loss softmax-loss 6"];
    assert_eq!(text(&network), expected);
    let constant = vec![weights("x2", &[2, 8]), weights("w", &[8, 6]), weights("b", &[6])];
    let mut nodes = nodes();
    nodes[0].input[0] = "x2".to_owned();
    nodes.push(node("MatMul", &["x", "y"], &["z"], &[]));
    nodes[1].output[0] = "y".to_owned();
    // A product of constants is a constant.
    let network = read(&model(&[-1, 2], constant, nodes)).unwrap();
    assert_eq!(text(&network), ["input input 2", "the_MatMul fully-connected 6", "loss softmax-loss 6"]);
}

#[test]
fn weights_come_in_the_order_of_the_layers() {
    let mut net = model(
        &[-1, 2],
        vec![
            floats("a", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            floats("b", &[2, 3], &[7.0, 8.0, 9.0, 10.0, 11.0, 12.0]),
            floats("c", &[2], &[13.0, 14.0]),
        ],
        vec![
            node("MatMul", &["x", "a"], &["h"], &[]),
            node("Gemm", &["h", "b", "c"], &["y"], &[("transB", Is::Int(1))]),
        ],
    );
    let (folder, path) = file(&bytes(&net));
    let numbers = |path| -> Result<Vec<(Slot, Vec<f32>)>, Error> {
        Ok(Model::read(path)?.weights()?.into_iter().map(|numbers| (numbers.slot, numbers.numbers)).collect())
    };
    let expected = [
        (Slot::Weight, vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0]),
        (Slot::Weight, vec![7.0, 8.0, 9.0, 10.0, 11.0, 12.0]),
        (Slot::Bias, vec![13.0, 14.0]),
    ];
    assert_eq!(numbers(&path).unwrap(), expected);

    // The same in a separate file, after 4 other bytes.
    let entry = |key: &str, value: &str| StringStringEntryProto { key: key.to_owned(), value: value.to_owned() };
    let external = |location: &str| vec![entry("location", location), entry("offset", "4"), entry("length", "24")];
    let tensor = |net: &mut ModelProto, location: &str| {
        let tensor = &mut net.graph.as_mut().unwrap().initializer[0];
        (tensor.external_data, tensor.data_location) = (external(location), EXTERNAL);
        std::mem::take(&mut tensor.raw_data)
    };
    let taken = tensor(&mut net, "weights");
    std::fs::write(&path, bytes(&net)).unwrap();
    std::fs::write(folder.path().join("weights"), [&[0; 4][..], &taken].concat()).unwrap();
    assert_eq!(numbers(&path).unwrap(), expected);
    std::fs::write(folder.path().join("weights"), [0; 27]).unwrap();
    assert!(numbers(&path).unwrap_err().to_string().contains("layer the_MatMul: the weights `a` end at byte 4 + 24"));
    for outside in ["../weights", "/etc/passwd", ""] {
        tensor(&mut net, outside);
        std::fs::write(&path, bytes(&net)).unwrap();
        let error = numbers(&path).unwrap_err().to_string();
        assert!(
            error.contains("not inside the model's folder") || error.contains("cannot be read"),
            "{outside}: {error}"
        );
    }
}
