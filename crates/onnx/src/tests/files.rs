//! Files and models that are refused, and the words of the refusals.

use super::*;

#[test]
fn errors_name_the_file_the_node_and_the_operator() {
    let relu = |input: &str, output: &str| node("Relu", &[input], &[output], &[]);
    let shaped = |wanted: &[i64]| {
        model(&[-1, 4, 2, 2], vec![integers("s", wanted)], vec![node("Reshape", &["x", "s"], &["y"], &[])])
    };
    let mut no_shape = model(&[-1, 4, 2, 2], vec![], vec![relu("x", "y")]);
    no_shape.graph.as_mut().unwrap().input[0].r#type = None;
    let mut two = model(&[-1, 4, 2, 2], vec![], vec![node("Add", &["x", "z"], &["y"], &[])]);
    two.graph.as_mut().unwrap().input.push(value("z", &[-1, 4, 2, 2]));
    let mut unwritten = model(&[-1, 4], vec![], vec![relu("x", "y")]);
    unwritten.graph.as_mut().unwrap().output.push(value("z", &[]));
    let mut strange = model(&[-1, 4, 2, 2], vec![], vec![relu("x", "y")]);
    strange.graph.as_mut().unwrap().node[0].op_type = "a\u{1b}[31mb".repeat(40);
    let none = || weights("w", &[0]);
    for (model, parts) in [
        (
            model(&[-1, 4], vec![], vec![relu("b", "a"), node("Add", &["a", "x"], &["b"], &[])]),
            &["node `the Relu`", "cycles"][..],
        ),
        (
            model(&[-1, 4], vec![], vec![node("Add", &["x", "a"], &["a"], &[])]),
            &["node `the Add`", "`a`, which only a later node"],
        ),
        (
            model(&[-1, 4], vec![], vec![node("Add", &["x", "lost"], &["y"], &[])]),
            &["operator `Add`", "`lost`, but no node"],
        ),
        (model(&[-1, 4], vec![], vec![relu("x", "y"), relu("x", "y")]), &["`y` is written twice"]),
        (model(&[-1, 3, -1, 224], vec![], vec![relu("x", "y")]), &["extent 2 (`batch`) of input `x` is not fixed"]),
        (model(&[-1, 3, 0, 224], vec![], vec![relu("x", "y")]), &["extent 2 (0) of input `x` is not fixed"]),
        (
            model(&[-1, 3, i64::MAX, 224], vec![], vec![relu("x", "y")]),
            &["extent 2 of input `x` is 9223372036854775807"],
        ),
        (model(&[1 << 31; 4], vec![], vec![relu("x", "y")]), &["more than 2^60 elements"]),
        (model(&[5], vec![], vec![relu("x", "y")]), &["input `x` has 1 extents"]),
        (
            model(&[-1, 4], vec![weights("w", &[4])], vec![relu("w", "y")]),
            &["no input of the graph leads to an output"],
        ),
        (no_shape, &["input `x` has no shape"]),
        (two, &["the graph has 2 inputs (`x`, `z`)"]),
        (unwritten, &["no node writes its output `z`"]),
        (shaped(&[-1, -1]), &["cannot be reshaped to [-1, -1]"]),
        (shaped(&[-1, 7]), &["cannot be reshaped"]),
        (shaped(&[i64::MAX, 4]), &["not from 0 to 2^31"]),
        (
            one_convolution(&[-1, 4, 9, 9], &[6, 3, 3, 3], &[]),
            &["node `the Conv`", "1 groups of filters [6, 3, 3, 3] over 4"],
        ),
        (
            one_convolution(&[-1, 4, 9, 9], &[6, 4, 3, 3], &[("pads", Is::Ints(&[-1, 0, 0, 0]))]),
            &["pads -1 is not from 0"],
        ),
        (one_convolution(&[-1, 4, 9, 9], &[6, 4, 3, 3], &[("strides", Is::Ints(&[0, 1]))]), &["is 0"]),
        (one_convolution(&[-1, 4, 2, 2], &[6, 4, 3, 3], &[]), &["the filter covers 3"]),
        (one_convolution(&[-1, 4], &[6, 4], &[]), &["2 axes; windows need"]),
        (
            model(&[-1, 4, 2, 2], vec![], vec![node("Conv", &["x", "x"], &["y"], &[])]),
            &["input 1 depends on the samples"],
        ),
        (model(&[-1, 4, 2, 2], vec![], vec![node("Conv", &["x"], &["y"], &[])]), &["input 1 (`W`) is missing"]),
        (
            model(&[-1, 4, 2, 2], vec![none()], vec![node("Loop", &["x", "w"], &["y"], &[])]),
            &["operator `Loop`", "not supported"],
        ),
        (
            model(&[-1, 4], vec![TensorProto { dims: vec![1 << 40; 2], ..none() }], vec![relu("x", "y")]),
            &["initializer `w`"],
        ),
        (strange, &["operator `a\\u{1b}[31mba", "..`", "is not supported"]),
        (ModelProto::default(), &["it has no graph"]),
        (ModelProto { graph: Some(GraphProto::default()), opset_import: Vec::new() }, &["no input of the graph"]),
    ] {
        let message = error(&model);
        assert!(message.contains("net.onnx"), "{message}");
        for part in parts {
            assert!(message.contains(part), "{part}: {message}");
        }
        assert!(!message.contains(char::is_control) && message.len() < 700, "{message}");
    }
}

#[test]
fn the_operator_version_comes_from_the_onnx_domain() {
    let read = |imports| {
        let model = ModelProto { opset_import: imports, ..flatten_by_arithmetic(-1) };
        let (_folder, path) = file(&bytes(&model));
        Model::read(&path).map(|model| model.version())
    };
    for (imports, version) in [
        (vec![import("", 7)], 7),
        (vec![import("com.microsoft", 1), import("ai.onnx", 12)], 12),
        (vec![import("", 12), import("ai.onnx", 12)], 12),
    ] {
        assert_eq!(read(imports).unwrap(), Some(version));
    }
    for (imports, why) in [
        (vec![], "the file does not say the version of its operators"),
        (vec![import("com.microsoft", 12)], "the file does not say the version of its operators"),
        (vec![import("", 6)], "node `the Shape`, operator `Shape`: its operators are of version 6; versions 7 to 28"),
        (vec![import("", 29)], "export the model with opset_version=28"),
        (vec![import("", 12), import("ai.onnx", 13)], "several versions of ONNX's operators: [12, 13]"),
    ] {
        let error = read(imports).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn files_of_pytorch_are_refused_with_the_line_that_exports_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.pt");
    std::fs::write(&path, b"PK").unwrap();
    let error = crate::open(path.to_str().unwrap()).unwrap_err().to_string();
    let onnx = path.with_extension("onnx");
    assert!(error.contains("tightfit.torch.network(model, ") && error.contains(onnx.to_str().unwrap()), "{error}");
    let error = crate::open("lost.pt").unwrap_err().to_string();
    assert!(error.contains("cannot be read as a network"), "{error}");
}

#[test]
fn other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in
        [("text.onnx", b"{\"layers\": []}".to_vec()), ("zeros.onnx", vec![0; 100_000]), ("empty.onnx", vec![])]
    {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let error = crate::open(path.to_str().unwrap()).unwrap_err();
        assert!(error.to_string().contains("is not an ONNX model"), "{error}");
    }
    for path in [folder.path().join("lost.onnx"), folder.path().to_owned().join("folder.onnx"), "/dev/zero.onnx".into()]
    {
        if path.ends_with("folder.onnx") {
            std::fs::create_dir(&path).unwrap();
        }
        let error = crate::open(path.to_str().unwrap()).unwrap_err();
        assert!(error.to_string().contains("cannot be read as an ONNX model"), "{error}");
    }
}

/// A file with an initializer of 3 GiB; only its ends are on the disk.
#[test]
fn large_weights_are_skipped_unread() {
    let key = |field: u64, length: u64| {
        let mut key = Vec::new();
        prost::encoding::encode_varint(field << 3 | 2, &mut key);
        prost::encoding::encode_varint(length, &mut key);
        key
    };
    let mut graph = flatten_by_arithmetic(-1).graph.unwrap();
    let tensor =
        TensorProto { dims: vec![10, 24], name: "fc.weight".to_owned(), data_type: 1, ..TensorProto::default() };
    let tensor = [tensor.encode_to_vec(), key(9, 3 << 30)].concat();
    graph.initializer.remove(0);
    let graph = graph.encode_to_vec();
    let tensor = [key(5, tensor.len() as u64 + (3 << 30)), tensor].concat();
    let whole = (graph.len() + tensor.len()) as u64 + (3 << 30);
    let version = import("", 12).encode_to_vec();
    let head = [key(8, version.len() as u64), version, key(7, whole), graph, tensor].concat();
    let (_folder, path) = file(&head);
    let open = || crate::open(path.to_str().unwrap());
    let cut = open().unwrap_err().to_string();
    assert!(cut.contains("cut off or damaged"), "{cut}");
    std::fs::File::options().write(true).open(&path).unwrap().set_len(head.len() as u64 + (3 << 30)).unwrap();
    assert_eq!(open().unwrap().parameters(), 250);
    // Reading all of the file would exceed the bound.
    assert!(matches!(decode(&path, usize::MAX, MOST_GRAPH.0), Err(Error::File { .. })));
}
