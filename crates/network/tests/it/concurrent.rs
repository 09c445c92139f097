//! Which kernels may run side by side, against a search of every path.

use tightfit_conv::{Layout, Operation, Types};
use tightfit_network::{Kernel, LayerId, Network, built_in, names};

fn kernels(network: &Network, operations: &[Operation]) -> Vec<Kernel> {
    // Lists state their mini-batches; this number does not matter here.
    network.kernels(Some(1), operations, Types::F32, Layout::Nchw).unwrap()
}

/// Whether a path leads from one layer to the other, by following every edge.
fn leads(network: &Network, from: LayerId, to: LayerId) -> bool {
    let mut seen = vec![false; network.layers().len()];
    let mut open = vec![from];
    while let Some(layer) = open.pop() {
        if layer == to {
            return true;
        }
        if !std::mem::replace(&mut seen[layer.index()], true) {
            open.extend(network.consumers(layer));
        }
    }
    false
}

fn id(network: &Network, name: &str) -> LayerId {
    network.iter().find(|(_, layer)| layer.name == name).unwrap().0
}

/// Two members of one group with a path between them, or of different operations.
fn conflict(network: &Network, kernels: &[Kernel], groups: &[Vec<usize>]) -> Option<(String, String)> {
    for group in groups {
        for (place, &a) in group.iter().enumerate() {
            for &b in &group[place + 1..] {
                let [a, b] = [a, b].map(|kernel| &kernels[kernel]);
                let [from, to] = [a, b].map(|kernel| id(network, &kernel.layer));
                if a.problem.operation() != b.problem.operation()
                    || leads(network, from, to)
                    || leads(network, to, from)
                {
                    return Some((a.layer.clone(), b.layer.clone()));
                }
            }
        }
    }
    None
}

#[test]
fn no_path_leads_from_one_member_to_another() {
    for (name, _) in names() {
        let network = built_in(name).unwrap();
        let kernels = kernels(&network, &[Operation::Forward, Operation::BackwardFilter]);
        let groups = network.concurrent(&kernels);
        assert_eq!(conflict(&network, &kernels, &groups), None, "{name}");
        let mut members: Vec<usize> = groups.concat();
        members.sort_unstable();
        assert!(members.into_iter().eq(0..kernels.len()), "{name}: every kernel is in one group");
    }
}

#[test]
fn the_search_finds_a_path_in_a_wrong_group() {
    let network = built_in("googlenet").unwrap();
    let kernels = kernels(&network, &[Operation::Forward]);
    let place = |layer: &str| kernels.iter().position(|kernel| kernel.layer == layer).unwrap();
    let wrong = vec![place("3a.3x3.reduce"), place("3a.3x3")];
    assert!(conflict(&network, &kernels, &[wrong]).is_some());
}

#[test]
fn branches_run_side_by_side_and_chains_do_not() {
    let sizes = |name: &str| {
        let network = built_in(name).unwrap();
        let groups = network.concurrent(&kernels(&network, &[Operation::Forward]));
        [1, 2, 4].map(|size| groups.iter().filter(|group| group.len() == size).count())
    };
    // Nine modules: four branches begin with a convolution, two continue with one.
    assert_eq!(sizes("googlenet"), [3, 9, 9]);
    // The four projections run concurrently with the first convolution of their blocks.
    assert_eq!(sizes("resnet50"), [45, 4, 0]);
    assert_eq!(sizes("vgg16"), [13, 0, 0]);
}

#[test]
fn layers_of_a_list_are_independent() {
    let list = Network::from_list("list", "a n1 c3 h8 w8 k4 r3 s3\nb n1 c3 h8 w8 k4 r3 s3\n").unwrap();
    assert_eq!(list.concurrent(&kernels(&list, &[Operation::Forward])), [[0], [1]]);
}
