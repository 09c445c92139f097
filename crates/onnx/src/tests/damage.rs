//! Every damaged form of a model is read or refused.

use proptest::prelude::*;

use super::*;
use tightfit_network::FeatureMaps;

/// A model that covers most of the reader.
fn varied() -> ModelProto {
    let mut model = flatten_by_arithmetic(-1);
    let graph = model.graph.as_mut().unwrap();
    graph.initializer.extend([
        weights("conv.weight", &[2, 2, 3, 3]),
        integers("starts", &[0]),
        integers("ends", &[i64::MAX]),
        integers("axes", &[1]),
        floats("scales", &[4], &[1.0, 1.0, 2.0, 2.0]),
        integers("pads", &[0, 0, 0, 0, 0, 0, 1, 1]),
    ]);
    let head = [
        node(
            "Conv",
            &["x", "conv.weight"],
            &["c"],
            &[("pads", Is::Ints(&[1, 1, 1, 1])), ("auto_pad", Is::Text("NOTSET"))],
        ),
        node("Sigmoid", &["c"], &["sigmoid"], &[]),
        node("Mul", &["c", "sigmoid"], &["silu"], &[]),
        node("Resize", &["silu", "", "scales"], &["wide"], &[]),
        node("Pad", &["wide", "pads"], &["padded"], &[]),
        node(
            "MaxPool",
            &["padded"],
            &["pooled"],
            &[("kernel_shape", Is::Ints(&[4, 6])), ("strides", Is::Ints(&[1, 1]))],
        ),
        node("Slice", &["pooled", "starts", "ends", "axes"], &["cut"], &[]),
        node("Split", &["cut"], &["left", "right"], &[("axis", Is::Int(2))]),
        node("Concat", &["left", "right"], &["joined"], &[("axis", Is::Int(2))]),
        node("Transpose", &["joined"], &["turned"], &[("perm", Is::Ints(&[0, 1, 3, 2]))]),
    ];
    let rename = |name: &mut String| {
        if name == "x" {
            "turned".clone_into(name);
        }
    };
    graph.node.iter_mut().flat_map(|node| &mut node.input).for_each(rename);
    graph.node.splice(0..0, head);
    graph.initializer[0] = weights("fc.weight", &[10, 32]);
    model
}

#[test]
fn the_varied_model_is_whole() {
    let network = read(&varied()).unwrap();
    assert!(network.layers().len() >= 12, "{:?}", text(&network));
}

/// Reads damaged bytes; they may be refused, but with an error that names the file.
fn survives(bytes: &[u8]) {
    let (_folder, path) = file(bytes);
    match Model::read(&path) {
        Ok(model) => {
            let _ = model.weights();
            let network = model.into_network();
            let _ = FeatureMaps::of(&network);
            assert_eq!(Network::from_json(&network.to_json()).unwrap(), network);
        }
        Err(error) => {
            assert!(error.to_string().contains("net.onnx") || matches!(error, Error::BadNetwork { .. }), "{error}")
        }
    }
}

#[test]
fn cut_off_files_are_read_or_refused() {
    let bytes = bytes(&varied());
    for length in 0..bytes.len() {
        survives(&bytes[..length]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_are_read_or_refused(damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = bytes(&varied());
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        survives(&bytes);
    }

    #[test]
    fn damaged_numbers_are_read_or_refused(
        place in any::<prop::sample::Index>(),
        number in prop_oneof![any::<i64>(), -3i64..3, Just(i64::MIN), Just(i64::MAX), Just(1 << 31), Just(1 << 60)],
    ) {
        let mut model = varied();
        let graph = model.graph.as_mut().unwrap();
        let attributes = graph.node.iter_mut().flat_map(|node| &mut node.attribute);
        let mut numbers: Vec<&mut i64> = attributes.flat_map(|attribute| attribute.ints.iter_mut().chain([&mut attribute.i])).collect();
        for tensor in &mut graph.initializer {
            numbers.extend(tensor.dims.iter_mut().chain(&mut tensor.int64_data));
        }
        for dim in graph.input.iter_mut().filter_map(|input| input.r#type.as_mut()?.tensor_type.as_mut()?.shape.as_mut()) {
            numbers.extend(dim.dim.iter_mut().filter_map(|dim| dim.dim_value.as_mut()));
        }
        let place = place.index(numbers.len());
        *numbers[place] = number;
        survives(&model.encode_to_vec());
    }
}
