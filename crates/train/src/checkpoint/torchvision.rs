//! torchvision's names of the layers of its ResNets and VGGs.
//!
//! ```text
//! l1.0.c2         layer1.0.conv2            conv1_1   features.0       each convolution and ReLU counts 1,
//! l1.0.c2.bn      layer1.0.bn2              conv1_2   features.2       and so does each pooling
//! l1.0.down       layer1.0.downsample.0     conv2_1   features.5
//! l1.0.down.bn    layer1.0.downsample.1     fc6       classifier.0
//! ```
//!
//! torchvision's GoogLeNet is another network than the published one (batch normalization, 3x3 for 5x5); it comes as an
//! ONNX model.

use std::collections::HashMap;

use tightfit_network::{LayerId, LayerKind, Network};

/// torchvision's name of each layer with parameters; none for a network that is not of torchvision.
pub fn names(network: &Network) -> HashMap<LayerId, String> {
    if network.name().starts_with("resnet") {
        return network.iter().filter_map(|(id, layer)| Some((id, resnet(&layer.name)?))).collect();
    }
    if network.name().starts_with("vgg") { vgg(network) } else { HashMap::new() }
}

/// The name of a ResNet's layer.
fn resnet(own: &str) -> Option<String> {
    let (convolution, is_norm) = own.strip_suffix(".bn").map_or((own, false), |convolution| (convolution, true));
    let kind = if is_norm { "bn" } else { "conv" };
    let (block, part) = match convolution.rsplit_once('.') {
        Some((block, part)) => (format!("layer{}.", block.strip_prefix('l')?), part),
        None => (String::new(), convolution),
    };
    if part == "down" {
        return Some(format!("{block}downsample.{}", u8::from(is_norm)));
    }
    if block.is_empty() {
        return Some(part.strip_prefix("conv").map_or(part.to_owned(), |number| format!("{kind}{number}")));
    }
    Some(format!("{block}{kind}{}", part.strip_prefix('c')?))
}

/// The names of a VGG's layers, by their place among the features, or among the layers after them.
fn vgg(network: &Network) -> HashMap<LayerId, String> {
    let mut names = HashMap::new();
    let (mut part, mut place) = ("features", 0);
    for (id, layer) in network.iter() {
        match layer.kind {
            LayerKind::Input { .. } => continue,
            LayerKind::Flatten => {
                (part, place) = ("classifier", 0);
                continue;
            }
            _ => {}
        }
        if layer.parameters > 0 {
            names.insert(id, format!("{part}.{place}"));
        }
        place += 1;
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(network: &str) -> HashMap<String, String> {
        let network = Network::open(network).unwrap();
        let names = names(&network);
        network.iter().filter_map(|(id, layer)| Some((layer.name.clone(), names.get(&id)?.clone()))).collect()
    }

    #[test]
    fn layers_have_the_names_of_torchvision() {
        let resnet = named("resnet50");
        for (own, wanted) in [
            ("conv1", "conv1"),
            ("conv1.bn", "bn1"),
            ("l1.0.c1", "layer1.0.conv1"),
            ("l4.2.c3.bn", "layer4.2.bn3"),
            ("l2.0.down", "layer2.0.downsample.0"),
            ("l2.0.down.bn", "layer2.0.downsample.1"),
            ("fc", "fc"),
        ] {
            assert_eq!(resnet[own], wanted);
        }
        let vgg = named("vgg16");
        for (own, wanted) in [
            ("conv1_1", "features.0"),
            ("conv2_1", "features.5"),
            ("conv5_3", "features.28"),
            ("fc6", "classifier.0"),
            ("fc8", "classifier.6"),
        ] {
            assert_eq!(vgg[own], wanted);
        }
        assert!(named("googlenet").is_empty());
    }

    #[test]
    fn no_two_layers_with_parameters_share_a_name() {
        for network in ["resnet18", "resnet50", "vgg16"] {
            let opened = Network::open(network).unwrap();
            let names = names(&opened);
            let used: Vec<&String> =
                opened.iter().filter(|(_, layer)| layer.parameters > 0).map(|(id, _)| &names[&id]).collect();
            let distinct: std::collections::HashSet<_> = used.iter().collect();
            assert_eq!(distinct.len(), used.len(), "{network}");
        }
    }
}
