//! The built-in networks, one file per family.

mod alexnet;
mod deepbench;
mod densenet;
mod googlenet;
mod overfeat;
mod resnet;
mod small;
mod vgg;

use tightfit_units::{Error, distance};

use super::Network;

type Make = fn() -> Result<Network, Error>;

/// Name, description and constructor; families in order of publication.
const NETWORKS: [(&str, &str, Make); 27] = [
    ("lenet", "LeNet for 28x28 digits, Caffe's form", small::lenet),
    ("cifar10-quick", "Caffe's quick network for CIFAR-10, 32x32", small::cifar10_quick),
    ("digits-net", "a small LeNet-like network for 8x8 digits", small::digits_net),
    ("alexnet", "AlexNet, two groups, 227x227, Caffe's form", alexnet::two_groups),
    ("alexnet-1col", "AlexNet, one column, 224x224", alexnet::one_column),
    ("overfeat", "OverFeat, fast model, 231x231", overfeat::fast),
    ("vgg11", "VGG with 8 convolutions, 224x224", || vgg::vgg("vgg11", [1, 1, 2, 2, 2])),
    ("vgg13", "VGG with 10 convolutions, 224x224", || vgg::vgg("vgg13", [2, 2, 2, 2, 2])),
    ("vgg16", "VGG with 13 convolutions, 224x224", || vgg::vgg("vgg16", [2, 2, 3, 3, 3])),
    ("vgg19", "VGG with 16 convolutions, 224x224; vDNN's VGG-16", || vgg::vgg19_deepened("vgg19", 0)),
    ("vgg116", "VGG deepened to 116 convolutions, vDNN's series", || vgg::vgg19_deepened("vgg116", 20)),
    ("vgg216", "VGG deepened to 216 convolutions, vDNN's series", || vgg::vgg19_deepened("vgg216", 40)),
    ("vgg316", "VGG deepened to 316 convolutions, vDNN's series", || vgg::vgg19_deepened("vgg316", 60)),
    ("vgg416", "VGG deepened to 416 convolutions, vDNN's series", || vgg::vgg19_deepened("vgg416", 80)),
    ("vgg516", "VGG deepened to 516 convolutions, vDNN's series", || vgg::vgg19_deepened("vgg516", 100)),
    ("googlenet", "GoogLeNet without auxiliary classifiers, 224x224", googlenet::googlenet),
    ("resnet18", "ResNet-18, 224x224", || resnet::basic("resnet18", [2, 2, 2, 2])),
    ("resnet34", "ResNet-34, 224x224", || resnet::basic("resnet34", [3, 4, 6, 3])),
    ("resnet50", "ResNet-50, 224x224, stride on the 3x3", || resnet::bottleneck("resnet50", [3, 4, 6, 3])),
    ("resnet101", "ResNet-101, 224x224, stride on the 3x3", || resnet::bottleneck("resnet101", [3, 4, 23, 3])),
    ("resnet152", "ResNet-152, 224x224, stride on the 3x3", || resnet::bottleneck("resnet152", [3, 8, 36, 3])),
    ("densenet40", "DenseNet with 40 layers, growth 40, 32x32", densenet::densenet40),
    ("densenet121", "DenseNet-121, growth 32, 224x224", || densenet::bottleneck("densenet121", [6, 12, 24, 16])),
    ("densenet201", "DenseNet-201, growth 32, 224x224", || densenet::bottleneck("densenet201", [6, 12, 48, 32])),
    ("deepbench", "DeepBench's 94 training convolutions, their own mini-batches", deepbench::all),
    ("deepbench-256", "DeepBench's 40 square 3x3 and 5x5 convolutions, mini-batch 256", deepbench::square),
    ("deepbench-x4", "DeepBench's 94 training convolutions, mini-batches times 4", deepbench::times_four),
];

/// Names of the built-in networks, each with a one-line description.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    NETWORKS.iter().map(|(name, description, _)| (*name, *description))
}

/// Returns the built-in network with this name.
///
/// ```
/// use tightfit_network::built_in;
/// assert_eq!(built_in("resnet50")?.parameters(), 25_557_032);
/// assert_eq!(built_in("ResNet50")?.name(), "resnet50");
/// assert!(built_in("resnet51").unwrap_err().to_string().contains("resnet50"));
/// # Ok::<(), tightfit_units::Error>(())
/// ```
///
/// # Errors
/// [`Error::UnknownWord`] with the nearest names for an unknown name.
pub fn built_in(name: &str) -> Result<Network, Error> {
    match NETWORKS.iter().find(|(known, _, _)| known.eq_ignore_ascii_case(name)) {
        Some((_, _, make)) => make(),
        None => {
            let mut nearest: Vec<&str> = names().map(|(known, _)| known).collect();
            // Members of the named family come first, in the order of the list.
            nearest.sort_by_key(|known| if known.starts_with(name) { 0 } else { 1 + distance(known, name) });
            Err(Error::unknown_word("built-in networks; the nearest names are", name, nearest.into_iter().take(5)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_listed_in_its_order() {
        let message = built_in("resnet").unwrap_err().to_string();
        assert!(message.ends_with("are: resnet18, resnet34, resnet50, resnet101, resnet152"), "{message}");
        let message = built_in("resnet51").unwrap_err().to_string();
        assert!(message.contains("are: resnet50, "), "{message}");
    }
}
