//! Unknown fields of a node are refused by name, or keep the node from running.

use super::*;

/// One node over `x`, with weights `w`, `v` and so on, at a version.
fn one(version: i64, operator: &str, inputs: &[&str], attributes: &[(&str, Is<'_>)]) -> ModelProto {
    let numbers = vec![weights("w", &[4, 4, 2, 2]), weights("c", &[4]), floats("half", &[], &[0.5])];
    at(version, model(&[-1, 4, 6, 6], numbers, vec![node(operator, inputs, &["y"], attributes)]))
}

#[test]
fn unknown_fields_are_refused_by_name() {
    let two = [2, 2];
    let kernel = || ("kernel_shape", Is::Ints(&two));
    for (model, why) in [
        (one(9, "MaxPool", &["x"], &[kernel(), ("dilations", Is::Ints(&[3, 3]))]), "attribute `dilations` = [3, 3]"),
        (
            one(20, "MaxPool", &["x"], &[kernel(), ("later", Is::Int(1))]),
            "attribute `later` = 1 is not known: MaxPool of",
        ),
        (one(20, "Relu", &["x"], &[("alpha", Is::Float(0.5))]), "attribute `alpha` = 0.5 is not known"),
        (one(20, "Relu", &["x", "half"], &[]), "input 1 `half` is not known: Relu of version 20 has 1"),
        (one(20, "Clip", &["x"], &[("min", Is::Float(0.0))]), "attribute `min`"),
        (one(10, "Clip", &["x", "half"], &[]), "input 1 `half` is not known"),
        (one(13, "Gelu", &["x"], &[]), "Gelu is an operator of versions 20 to 28"),
        (one(10, "Upsample", &["x", "c"], &[]), "Upsample is an operator of versions 7 to 9"),
        (one(17, "MaxPool", &["x"], &[]), "attribute `kernel_shape` is missing"),
        (one(17, "MaxPool", &["x"], &[kernel(), kernel()]), "attribute `kernel_shape` is given twice"),
        (one(17, "MaxPool", &["x"], &[("kernel_shape", Is::Int(2))]), "`kernel_shape` = 2 is not of type ints"),
        (one(17, "Gemm", &["x"], &[]), "input 1 (`B`) is missing"),
        (one(8, "BatchNormalization", &["x", "c", "c", "c", "c"], &[("spatial", Is::Int(0))]), "`spatial` = 0"),
        (
            one(17, "Conv", &["x", "w"], &[("kernel_shape", Is::Ints(&[3, 3]))]),
            "`kernel_shape` = [3, 3], but the filters",
        ),
        (
            one(17, "Conv", &["x", "w"], &[("auto_pad", Is::Text("VALID")), ("pads", Is::Ints(&[1, 1, 1, 1]))]),
            "`pads` = [1, 1, 1, 1] and auto_pad `VALID` exclude each other",
        ),
        (
            one(
                17,
                "MaxPool",
                &["x"],
                &[
                    ("kernel_shape", Is::Ints(&[3, 3])),
                    ("strides", Is::Ints(&[2, 2])),
                    ("ceil_mode", Is::Int(1)),
                    ("auto_pad", Is::Text("VALID")),
                ],
            ),
            "`ceil_mode` = 1 and auto_pad `VALID` contradict",
        ),
        (one(18, "Resize", &["x", "", "c"], &[("keep_aspect_ratio_policy", Is::Text("not_larger"))]), "only `stretch`"),
    ] {
        let error = error(&model);
        assert!(error.contains(why) && error.contains("node `the "), "{why}: {error}");
    }
}

#[test]
fn outputs_that_are_not_computed_are_refused_where_they_are_read() {
    let kernel = [("kernel_shape", Is::Ints(&[2, 2]))];
    let pool = node("MaxPool", &["x"], &["p", "indices"], &kernel);
    let fine = model(&[-1, 4, 6, 6], vec![], vec![pool.clone(), node("Relu", &["p"], &["y"], &[])]);
    read(&fine).unwrap();
    let cast = node("Cast", &["indices"], &["y"], &[("to", Is::Int(1))]);
    let message = error(&model(&[-1, 4, 6, 6], vec![], vec![pool.clone(), cast]));
    assert!(
        message.contains("it reads `indices`, an output of node `the MaxPool` (`MaxPool`) that is not supported"),
        "{message}"
    );
    let message = error(&model(&[-1, 4, 6, 6], vec![], vec![pool]));
    assert!(message.contains("its output `indices` is one of `MaxPool` that is not supported"), "{message}");
}

/// Why the only layer between the samples and the loss cannot run.
fn reason(model: &ModelProto) -> Option<String> {
    let (_folder, path) = file(&bytes(model));
    let model = Model::read(&path).unwrap();
    let network = model.network();
    let of = |(id, layer): (LayerId, &tightfit_network::Layer)| {
        let stays = matches!(&layer.kind, LayerKind::Other(other) if other.function.is_none());
        stays.then(|| model.reason(id).unwrap_or_default().to_owned())
    };
    network.iter().find_map(of)
}

#[test]
fn values_that_no_layer_computes_with_are_planned_and_named() {
    let two = [2, 2];
    let kernel = || ("kernel_shape", Is::Ints(&two));
    let resize = |more: (&'static str, Is<'static>)| {
        let scales = floats("s", &[4], &[1.0, 1.0, 2.0, 2.0]);
        let attributes = [("mode", Is::Text("linear")), more];
        at(18, model(&[-1, 4, 6, 6], vec![scales], vec![node("Resize", &["x", "", "s"], &["y"], &attributes)]))
    };
    for (model, why) in [
        (
            one(10, "MaxPool", &["x"], &[kernel(), ("dilations", Is::Ints(&[3, 3]))]),
            "attribute `dilations` = [3, 3], not 1",
        ),
        (
            one(19, "AveragePool", &["x"], &[kernel(), ("dilations", Is::Ints(&[1, 3]))]),
            "attribute `dilations` = [1, 3]",
        ),
        (
            one(19, "AveragePool", &["x"], &[kernel(), ("pads", Is::Ints(&[1; 4])), ("count_include_pad", Is::Int(1))]),
            "attribute `count_include_pad` = 1, not 0",
        ),
        (one(20, "Gelu", &["x"], &[("approximate", Is::Text("sigmoid"))]), "attribute `approximate` = sigmoid"),
        (one(24, "Swish", &["x"], &[("alpha", Is::Float(2.0))]), "attribute `alpha` = 2, not 1"),
        (one(17, "Cast", &["x"], &[("to", Is::Int(7))]), "attribute `to` = 7"),
        (resize(("antialias", Is::Int(1))), "attribute `antialias` = 1, not 0"),
        (resize(("mode", Is::Text("cubic"))), ""),
        (resize(("exclude_outside", Is::Int(1))), "attribute `exclude_outside` = 1, not 0"),
        (resize(("coordinate_transformation_mode", Is::Text("asymmetric"))), "`linear` at `asymmetric`"),
        (one(13, "ReduceMean", &["x"], &[("axes", Is::Ints(&[1]))]), ""),
    ] {
        if why.is_empty() && read(&model).is_err() {
            continue;
        }
        let reason = reason(&model).unwrap_or_else(|| panic!("{why}: it runs"));
        assert!(reason.contains(why), "{why}: {reason}");
    }
    assert_eq!(reason(&one(10, "MaxPool", &["x"], &[kernel(), ("dilations", Is::Ints(&[1, 1]))])), None);
}

#[test]
fn values_that_are_left_out_are_those_of_the_version() {
    let softmax = |version, axis: &[(&str, Is<'_>)]| {
        at(version, model(&[-1, 4], vec![], vec![node("Softmax", &["x"], &["y"], axis)]))
    };
    for version in [7, 12, 13, 28] {
        assert_eq!(text(&read(&softmax(version, &[])).unwrap()), ["input input 4", "loss softmax-loss 4"]);
    }
    for axis in [0, -2] {
        let network = read(&softmax(13, &[("axis", Is::Int(axis))])).unwrap();
        assert_eq!(text(&network)[1], "the_Softmax Softmax 4", "{axis}");
    }
}

#[test]
fn samples_of_whole_numbers_are_planned_and_named() {
    for (of, floating) in
        [(0, true), (data_type::FLOAT, true), (data_type::FLOAT16, true), (2, false), (data_type::INT64, false)]
    {
        let mut net = model(&[-1, 4], vec![], vec![node("Relu", &["x"], &["y"], &[])]);
        let info = net.graph.as_mut().unwrap().input[0].r#type.as_mut().unwrap();
        info.tensor_type.as_mut().unwrap().elem_type = of;
        let (_folder, path) = file(&bytes(&net));
        let model = Model::read(&path).unwrap();
        let (samples, _) = model.network().iter().next().unwrap();
        let reason = model.reason(samples).map(str::to_owned);
        let named = format!("input `x`: its elements are of type {of}");
        assert_eq!(reason.is_some_and(|reason| reason.starts_with(&named)), !floating, "{of}");
    }
}

#[test]
fn layers_of_samples_are_not_taken_where_other_extents_come_first() {
    let numbers = || vec![integers("s", &[-1, 2]), weights("w", &[3, 2])];
    let nodes = || {
        vec![node("Reshape", &["x", "s"], &["r"], &[]), node("Gemm", &["r", "w"], &["y"], &[("transB", Is::Int(1))])]
    };
    let halves = model(&[-1, 4], numbers(), nodes());
    assert!(reason(&halves).unwrap().contains("does not have the samples, 61, along its first axis"));
}
