//! The built-in networks against published tables, and the layer lists in `networks/` against them.

use std::collections::HashSet;
use std::path::Path;

use tightfit_conv::{Layout, Operation, Types};
use tightfit_network::{Kernel, LayerKind, Network, built_in, distinct, names};
use tightfit_units::Error;

fn open(name: &str) -> Network {
    built_in(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn kernels(network: &Network, batch: Option<usize>, operations: &[Operation]) -> Vec<Kernel> {
    network.kernels(batch, operations, Types::F32, Layout::Nchw).unwrap()
}

fn shape_of(network: &Network, layer: &str) -> String {
    let found = network.layers().iter().find(|l| l.name == layer);
    found.unwrap_or_else(|| panic!("{} has no layer {layer}", network.name())).shape.to_string()
}

/// torchvision's figures for its models; Caffe's own for LeNet, the CIFAR-10 network, AlexNet and GoogLeNet.
#[test]
fn parameter_counts_match_the_papers() {
    for (name, parameters) in [
        ("lenet", 431_080),
        ("cifar10-quick", 145_578),
        ("alexnet", 60_965_224),
        ("alexnet-1col", 61_100_840),
        ("overfeat", 145_920_872),
        ("vgg11", 132_863_336),
        ("vgg13", 133_047_848),
        ("vgg16", 138_357_544),
        ("vgg19", 143_667_240),
        ("googlenet", 6_998_552),
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
        ("densenet121", 7_978_856),
        ("densenet201", 20_013_928),
    ] {
        assert_eq!(open(name).parameters(), parameters, "{name}");
    }
}

#[test]
fn multiply_adds_match_the_papers() {
    // Billions, to torchvision's three decimals.
    for (name, published) in [
        ("alexnet-1col", "0.714"),
        ("vgg11", "7.609"),
        ("vgg13", "11.308"),
        ("vgg16", "15.470"),
        ("vgg19", "19.632"),
        ("resnet18", "1.814"),
        ("resnet34", "3.664"),
        ("resnet50", "4.089"),
        ("resnet101", "7.801"),
        ("resnet152", "11.514"),
        ("densenet121", "2.834"),
        ("densenet201", "4.291"),
    ] {
        assert_eq!(format!("{:.3}", open(name).multiply_adds() / 1e9), published, "{name}");
    }
}

#[test]
fn shapes_match_the_papers() {
    for (name, layers) in [
        ("lenet", &["conv1 20x24x24", "pool1 20x12x12", "conv2 50x8x8", "pool2 50x4x4", "loss 10"][..]),
        ("cifar10-quick", &["pool1 32x16x16", "pool2 32x8x8", "pool3 64x4x4", "loss 10"]),
        ("digits-net", &["conv1 16x8x8", "pool2 32x4x4", "loss 10"]),
        ("alexnet", &["conv1 96x55x55", "pool1 96x27x27", "pool2 256x13x13", "pool5 256x6x6", "loss 1000"]),
        ("alexnet-1col", &["conv1 64x55x55", "pool1 64x27x27", "conv4 256x13x13", "pool5 256x6x6", "loss 1000"]),
        // Sermanet et al. 2014, table 1: the row of input sizes.
        ("overfeat", &["pool1 96x28x28", "conv2 256x24x24", "pool2 256x12x12", "conv5 1024x12x12", "pool5 1024x6x6"]),
        ("vgg16", &["conv1_2 64x224x224", "pool1 64x112x112", "conv3_3 256x56x56", "pool5 512x7x7", "loss 1000"]),
        // He et al. 2016, table 1: the column of output sizes.
        ("resnet50", &["conv1 64x112x112", "l1.2 256x56x56", "l2.3 512x28x28", "l3.5 1024x14x14", "l4.2 2048x7x7"]),
        ("resnet34", &["pool1 64x56x56", "l1.2 64x56x56", "l2.3 128x28x28", "l3.5 256x14x14", "l4.2 512x7x7"]),
        // Szegedy et al. 2015, table 1: the column of output sizes.
        ("googlenet", &["conv1 64x112x112", "pool1 64x56x56", "conv2 192x56x56", "pool2 192x28x28", "3a 256x28x28"]),
        ("googlenet", &["3b 480x28x28", "pool3 480x14x14", "4a 512x14x14", "4b 512x14x14", "4c 512x14x14"]),
        (
            "googlenet",
            &["4d 528x14x14", "4e 832x14x14", "pool4 832x7x7", "5a 832x7x7", "5b 1024x7x7", "pool5 1024x1x1"],
        ),
        // 16 channels, then 12 layers of 40 a block.
        ("densenet40", &["conv1 16x32x32", "b1.12 496x32x32", "t1.pool 496x16x16", "b2.12 976x16x16"]),
        ("densenet40", &["t2.conv 976x16x16", "b3.1 1016x8x8", "b3.12 1456x8x8", "pool 1456x1x1", "loss 10"]),
        // Huang et al. 2017, table 1: the column of output sizes.
        ("densenet121", &["conv1 64x112x112", "pool1 64x56x56", "b1.6 256x56x56", "t1.conv 128x56x56"]),
        ("densenet121", &["t1.pool 128x28x28", "b2.12 512x28x28", "t2.pool 256x14x14", "b3.24 1024x14x14"]),
        ("densenet121", &["t3.pool 512x7x7", "b4.16 1024x7x7", "pool 1024x1x1", "loss 1000"]),
        ("densenet201", &["t2.pool 256x14x14", "b3.48 1792x14x14", "t3.pool 896x7x7", "b4.32 1920x7x7"]),
    ] {
        let network = open(name);
        for layer in layers {
            let layer_name = layer.split(' ').next().unwrap();
            assert_eq!(format!("{layer_name} {}", shape_of(&network, layer_name)), **layer, "{name}");
        }
    }
}

/// Millions of multiply-adds of each module, from table 1 of Szegedy et al. 2015. Left out: 5a, because the table's 54 contradicts its own numbers of
/// filters, which result in 51.
#[test]
fn googlenet_modules_do_the_published_work() {
    let googlenet = open("googlenet");
    for (module, published) in
        [("3a", 128), ("3b", 304), ("4a", 73), ("4b", 88), ("4c", 100), ("4d", 119), ("4e", 170), ("5b", 71)]
    {
        let convolutions =
            googlenet.convolutions().filter(|(id, _)| googlenet.layer(*id).name.starts_with(&format!("{module}.")));
        let work: usize = convolutions.map(|(_, c)| c.output_len() * c.filter_len() / c.filters()).sum();
        let millions = work as f64 / 1e6;
        assert!((millions - f64::from(published)).abs() < 1.0, "{module}: {millions} M, published {published} M");
    }
}

#[test]
fn kernels_are_convolutions_times_operations() {
    for (name, convolutions, shapes) in [
        ("alexnet", 5, 5),
        ("alexnet-1col", 5, 5),
        ("overfeat", 5, 5),
        ("vgg11", 8, 7),
        ("vgg13", 10, 9),
        ("vgg16", 13, 9),
        ("vgg19", 16, 9),
        ("vgg116", 116, 9),
        ("vgg216", 216, 9),
        ("vgg316", 316, 9),
        ("vgg416", 416, 9),
        ("vgg516", 516, 9),
        ("googlenet", 57, 49),
        ("resnet18", 20, 11),
        ("resnet34", 36, 11),
        ("resnet50", 53, 23),
        ("resnet101", 104, 23),
        ("resnet152", 155, 23),
        ("densenet40", 39, 39),
        ("densenet121", 120, 66),
        ("densenet201", 200, 106),
        ("deepbench", 94, 90),
    ] {
        let network = open(name);
        let batch = (name != "deepbench").then_some(32);
        let all = kernels(&network, batch, &Operation::ALL);
        assert_eq!(all.len(), 3 * convolutions, "{name}: kernels");
        let groups = distinct(&all);
        assert_eq!(groups.len(), 3 * shapes, "{name}: distinct kernels");

        let mut members: Vec<usize> = groups.iter().flat_map(|(_, members)| members.clone()).collect();
        members.sort_unstable();
        assert!(members.iter().copied().eq(0..all.len()), "{name}: every kernel in one group");
        for (problem, members) in &groups {
            assert!(members.iter().all(|&index| all[index].problem == *problem), "{name}: {problem}");
        }
    }
}

#[test]
fn networks_are_graphs_in_topological_order() {
    let mut descriptions = HashSet::new();
    for (name, description) in names() {
        assert!(descriptions.insert(description), "{name}: {description} twice");
        let network = open(name);
        assert_eq!(network.name(), name);
        let mut edges = 0;
        for (id, layer) in network.iter() {
            assert!(layer.inputs.iter().all(|input| *input < id), "{name}: {} reads a later layer", layer.name);
            assert!(layer.inputs.iter().all(|input| network.consumers(*input).contains(&id)), "{name}: {}", layer.name);
            assert_eq!(
                layer.inputs.is_empty(),
                matches!(layer.kind, LayerKind::Input { .. }),
                "{name}: {}",
                layer.name
            );
            edges += layer.inputs.len();
        }
        assert_eq!(network.iter().map(|(id, _)| network.consumers(id).len()).sum::<usize>(), edges, "{name}");
        // A trainable network has one end, its loss; in a list every convolution is one.
        let ends = network.iter().filter(|(id, _)| network.consumers(*id).is_empty());
        if name.starts_with("deepbench") {
            assert_eq!(ends.count(), network.convolutions().count(), "{name}");
        } else {
            let ends: Vec<&str> = ends.map(|(_, layer)| layer.name.as_str()).collect();
            assert_eq!(ends, ["loss"], "{name}");
        }
    }
}

/// Every file in `networks/` reads, prints and reads again, and is part of the built-in network of its name: layers of one
/// name have one shape, and the shapes are all there.
#[test]
fn lists_agree_with_built_in_networks() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../networks");
    let mut compared = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let list = Network::open(path.to_str().unwrap()).unwrap();
        assert_eq!(Network::from_list(list.name(), &list.to_list()).unwrap(), list);
        kernels(&list, None, &[Operation::Forward]);

        let network = open(list.name());
        let prefix = format!("{}.", list.name().replace("alexnet-1col", "alexnet1col"));
        let known = kernels(&network, Some(1), &[Operation::Forward]);
        let listed = kernels(&list, Some(1), &[Operation::Forward]);
        for kernel in &listed {
            let layer = kernel.layer.strip_prefix(&prefix).unwrap_or(&kernel.layer);
            let same = known.iter().find(|known| known.layer == layer);
            assert_eq!(same.map(|known| known.problem), Some(kernel.problem), "{}: {layer}", list.name());
        }
        assert_eq!(distinct(&listed).len(), distinct(&known).len(), "{}", list.name());
        compared.push(list.name().to_owned());
    }
    compared.sort_unstable();
    let expected =
        ["alexnet", "alexnet-1col", "deepbench", "deepbench-256", "deepbench-x4", "resnet18", "resnet50", "vgg16"];
    assert_eq!(compared, expected);
}

#[test]
fn deepbench_lists_state_their_mini_batches() {
    let batches = |name| -> Vec<usize> {
        kernels(&open(name), None, &[Operation::Forward]).iter().map(|kernel| kernel.problem.batch()).collect()
    };
    let own = batches("deepbench");
    assert_eq!(batches("deepbench-x4"), own.iter().map(|n| 4 * n).collect::<Vec<_>>());
    assert_eq!(batches("deepbench-256"), [256; 40]);
    // Oyama et al. 2018, table IV: the largest are DeepSpeech's.
    assert_eq!((own.iter().min(), own.iter().max()), (Some(&4), Some(&32)));
    let replaced = kernels(&open("deepbench"), Some(7), &[Operation::Forward]);
    assert!(replaced.iter().all(|kernel| kernel.problem.batch() == 7));
}

#[test]
fn an_unknown_network_or_a_bad_file_is_named() {
    let message = Network::open("vgg17").unwrap_err().to_string();
    assert!(message.contains("vgg17") && message.contains("vgg16"), "{message}");
    assert!(matches!(Network::open("resnet"), Err(Error::UnknownWord { .. })));
    assert!(matches!(Network::open("no/such/list.txt"), Err(Error::File { .. })));
    assert!(matches!(Network::open(env!("CARGO_MANIFEST_DIR")), Err(Error::File { .. })));

    let batchless = open("lenet").kernels(None, &Operation::ALL, Types::F32, Layout::Nchw);
    assert!(matches!(batchless, Err(Error::BadNetwork { layer, .. }) if layer == "conv1"));
}
